"""The README of an exported folder: what it is, how well it plays, what it is not."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.rules import PRESETS
from hanabi_grpo.report.export.origin import Origin, PlayedResult
from hanabi_grpo.runs.v1 import boards_by_hash
from hanabi_grpo.tracking.card import table_cell

_TAGS = ["hanabi", "grpo", "lora", "multi-agent", "reinforcement-learning"]
_TO_TYPE = (
    "HANABI_PLAYERS",
    "HANABI_OBSERVATION",
    "HANABI_LEGAL_MOVES",
    "HANABI_THINKING",
    "MAX_COMPLETION_LENGTH",
    "TEMPERATURE",
    "HANABI_PRESET",
)
"""Settings of a game that have to be those of training."""


def write_card(
    folder: Path, origin: Origin, players: Sequence[str], *, base: str, is_on_hub: bool, merged: str = ""
) -> None:
    """Write README.md.

    Args:
        folder: Where.
        origin: Of the adapters.
        players: The adapters in this folder.
        base: The base model's name.
        is_on_hub: Whether that is a hub name, or only the name of a folder.
        merged: For a folder with the merged model: a sentence about how near it is to base and adapter.

    Raises:
        OSError: It cannot be written.
    """
    from huggingface_hub import ModelCard, ModelCardData

    title = f"Hanabi {', '.join(players)}" + (", merged" if merged else "")
    results = [one for one in origin.results if one.players & {*players}]
    data = ModelCardData(
        base_model=base if is_on_hub else None,
        base_model_relation=("finetune" if merged else "adapter") if is_on_hub else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=[tag for tag in _TAGS if not (merged and tag == "lora")],
        model_name=title,
        eval_results=[_eval_result(one) for one in results] or None,
    )
    parts = [f"---\n{data.to_yaml()}\n---", f"# {title}", _what(players, base, merged), _facts(origin, base)]
    parts += [
        "## Results",
        _results(origin, results),
        "## Use",
        _use(origin, players, base, bool(merged), (folder / "episodes").is_dir()),
    ]
    parts += ["## Limits", _limits(origin, base, is_on_hub, bool(merged))]
    ModelCard("\n\n".join(parts) + "\n").save(folder / "README.md")


def boards(origin: Origin) -> list[str]:
    """Return the boards that were trained on, by name; a hash stands for one that this version does not have."""
    known = boards_by_hash()
    named = {one: f"{name} with half of its decks" if halved else name for one, (name, halved) in known.items()}
    hashes = origin.saved.facts.get("board_hashes", [])
    return [named.get(str(one), str(one)) for one in hashes] if isinstance(hashes, list | tuple) else []


def _what(players: Sequence[str], base: str, merged: str) -> str:
    if merged:
        return f"{base} with the LoRA adapter of {players[0]} merged into its weights. {merged}"
    who = f"{players[0]}'s LoRA adapter" if len(players) == 1 else "LoRA adapters of a team"
    return f"{who} for {base}, trained with GRPO by hanabi-grpo to play the card game Hanabi."


def _facts(origin: Origin, base: str) -> str:
    facts: dict[str, Any] = {
        "base model": base,
        "weights of the base model (fingerprint)": origin.saved.facts.get("model_fingerprint", "unknown"),
        "optimizer steps": origin.saved.step,
        "LoRA rank": origin.saved.lora_rank,
        "board": ", ".join(boards(origin)) or "unknown",
        "score of the last training games": origin.score.text if origin.score else "unknown",
        **origin.settings,
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {table_cell(value)} |" for name, value in facts.items())])


def _results(origin: Origin, results: Sequence[PlayedResult]) -> str:
    note = (
        "The score of the last training games is of sampled games on training deals, by the versions of the last "
        "steps; it is no evaluation."
    )
    if not results:
        return f"No evaluation on held-out deals lay beside these adapters. {note}"
    lines = [
        "| line-up | board | deals | temperature | mean score ± SE | most points |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for one in results:
        found, result = one.result.estimate, one.result
        cells = (
            one.line_up,
            f"{result.preset}, {result.num_players} players",
            f"{found.num_deals} ({result.suite}, {found.num_starts} starts)",
            f"{result.temperature:g}" if result.temperature is not None else "-",
            f"{found.mean:.3f} ± {found.standard_error:.3f}",
            f"{result.score_range[1]:g}",
        )
        lines.append("| " + " | ".join(table_cell(cell) for cell in cells) + " |")
    return "\n".join([*lines, "", f"Standard errors are clustered by start. {note}"])


def _eval_result(one: PlayedResult) -> Any:
    from huggingface_hub import EvalResult

    result, found = one.result, one.result.estimate
    heat = "" if result.temperature is None else f", temperature {result.temperature:g}"
    return EvalResult(
        task_type="reinforcement-learning",
        task_name="Hanabi",
        dataset_type=f"hanabi-{result.preset}",
        dataset_name=f"{result.preset}, {result.num_players} players",
        dataset_split=result.suite,
        dataset_args={"spec_hash": result.spec_hash, "num_deals": found.num_deals},
        metric_type="mean_score",
        metric_name=f"mean score of {one.line_up}{heat}",
        metric_value=round(found.mean, 4),
        metric_args={"standard_error": round(found.standard_error, 4), "most_points": result.score_range[1]},
        verified=False,
    )


def _use(origin: Origin, players: Sequence[str], base: str, merged: bool, games: bool) -> str:
    if merged:
        return _code(
            "python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("FOLDER")  # this one, or the repository',
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        )
    inner = f"FOLDER/{players[0]}" if len(players) > 1 else "FOLDER"
    plain = _code(
        "python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f'base = AutoModelForCausalLM.from_pretrained("{base}")',
        f'player = PeftModel.from_pretrained(base, "{inner}")  # FOLDER: this one',
    )
    given = _typed(origin, base)
    seats = ",".join(["FOLDER"] + ["iggi"] * (int(origin.settings.get("HANABI_PLAYERS", 2)) - 1))
    commands = [f"{given}hanabi-grpo evaluate {seats if len(players) == 1 else 'FOLDER'} --own-server"]
    if games:
        commands.append("hanabi-grpo view FOLDER   # recorded games of its training")
    return plain + "\n\nGames, with hanabi-grpo (FOLDER may be `hf:org/repo`):\n\n" + _code("bash", *commands)


def _typed(origin: Origin, base: str) -> str:
    values: dict[str, Any] = {"MODEL": base, "LORA_RANK": origin.saved.lora_rank}
    values |= {name: origin.settings[name] for name in _TO_TYPE if name in origin.settings}
    if "HANABI_PRESET" not in values and len(named := [one for one in boards(origin) if one in PRESETS]) == 1:
        values["HANABI_PRESET"] = named[0]
    return "".join(f"{name}={shlex.quote(_plain(value))} " for name, value in values.items())


def _limits(origin: Origin, base: str, is_on_hub: bool, merged: bool) -> str:
    lines = [
        "It was trained to play with its own team. With other partners, other seats or people it may play much worse.",
        "It knows the boards and the prompt format of its training (see above); on others it may name moves that the "
        "rules forbid, or none.",
        "It was trained on games only, so whatever else the base model could do may have suffered. The base model's "
        "licence and limits hold on.",
    ]
    if not merged:
        lines.append(
            f"It needs exactly the base model {base}; the fingerprint above tells whether another copy has its weights."
        )
    if not is_on_hub:
        lines.append(f"The base model is known here by its folder's name only ({base}); it is not named on the hub.")
    if not origin.results:
        lines.append("How well it plays on held-out deals is not known.")
    return "\n".join(f"- {line}" for line in lines)


def _code(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
