"""The README of an artifact: what the adapters are, how well they play, what they are not."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.tracking.score import RunningScore


def card_text(
    values: Mapping[str, Any],
    *,
    step: int,
    adapters: Sequence[str],
    score: RunningScore | None,
    boards: Sequence[str],
    evaluations: Sequence[str],
    games: str | None = None,
) -> str:
    """Return the card in Markdown.

    Args:
        values: The run's settings by variable.
        step: Optimizer steps behind the adapters.
        adapters: Their names.
        score: Running score of the training games.
        boards: Hashes of the boards that were played.
        evaluations: Names of the evaluation files beside the card.
        games: Name of the file of sample games in `episodes/`.
    """
    base = base_name(values)
    header = ["library_name: peft", "tags: [hanabi, grpo, lora]"]
    if not _is_local(values):
        header.insert(0, f"base_model: {json.dumps(base)}")
    facts = {
        "base model": base,
        "optimizer steps": step,
        "players": values.get("HANABI_PLAYERS"),
        "board": f"{values.get('HANABI_PRESET') or 'as the dataset says'} ({', '.join(boards) or 'hash unknown'})",
        "adapters": ", ".join(adapters),
        "LoRA rank / alpha": f"{values.get('LORA_RANK')} / {values.get('LORA_ALPHA')}",
        "observation": values.get("HANABI_OBSERVATION"),
        "advantage": values.get("HANABI_ADVANTAGE"),
        "score of the last training games": score.text if score else "unknown",
        "evaluations": ", ".join(evaluations) or "none beside this card",
        "sample games": games or "none beside this card",
    }
    lines = ["---", *header, "---", "", "# Hanabi players", ""]
    lines += ["LoRA adapters for a team of language models that play Hanabi, trained with GRPO by hanabi-grpo.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items()), ""]
    lines += [
        "The score is of sampled games on training deals, by the versions of the last steps; it is no evaluation.",
        "",
        "Limits: the adapters know the prompt format and the board that `settings.json` names, were trained to play "
        "with each other, and may play worse with other partners and on other boards.",
        "",
        "```bash",
        "hanabi-grpo evaluate FOLDER --own-server     # FOLDER: this one",
        *(["hanabi-grpo view FOLDER --best 1              # one of the sample games"] if games else []),
        "```",
        "",
    ]
    return "\n".join(lines)


def base_name(values: Mapping[str, Any]) -> str:
    """Return the base model's hub name, or the last part of its folder: whole paths name machines and people."""
    model = str(values.get("MODEL", ""))
    return Path(model).name if _is_local(values) else model


def _is_local(values: Mapping[str, Any]) -> bool:
    model = str(values.get("MODEL", ""))
    return Path(model).is_dir() or model.startswith((".", "/", "~")) or model.count("/") != 1


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
