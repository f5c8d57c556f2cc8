"""The README of an artifact: what the adapters are, how well they play, what they are not."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.settings.board import is_local_model
from hanabi_grpo.tracking.score import RunningScore

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)


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
    base, is_on_hub = base_name(str(values.get("MODEL", "")))
    header = ["library_name: peft", "tags: [hanabi, grpo, lora]"]
    if is_on_hub:
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
    lines += ["| | |", "|---|---|", *(f"| {name} | {table_cell(value)} |" for name, value in facts.items()), ""]
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


def base_name(model: str) -> tuple[str, bool]:
    """Return the base model's name for publishing, and whether it is a hub name.

    A local model goes by the last part of its folder: whole paths name machines and people.

    Args:
        model: MODEL as it was trained on.
    """
    if HUB_NAME.fullmatch(model) and not is_local_model(model) and not Path(model).exists():
        return model, True
    return _NOT_IN_A_NAME.sub("-", Path(model).name) or "an unknown base model", False


def table_cell(value: object) -> str:
    """Return a value as a cell of a Markdown table."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
