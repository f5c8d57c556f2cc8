"""The README of an exported folder: what it is, how well it plays, what it is not. Its text is
templates/card.md.j2.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.rules import PRESETS, make_spec
from hanabi_grpo.report.export.origin import Origin, PlayedResult
from hanabi_grpo.report.page import templates
from hanabi_grpo.runs.manifest import spec_hashes
from hanabi_grpo.settings.variables import typed
from hanabi_grpo.tracking.artifact import table_cell

_TO_TYPE = (
    "HANABI_ENV",
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
    folder: Path, origin: Origin, players: Sequence[str], *, base: str, is_on_hub: bool
) -> None:
    """Write README.md of a folder with these adapters; raises an OSError.

    `is_on_hub` tells whether `base` is a hub name, or only that of a folder.
    """
    from huggingface_hub import ModelCard, ModelCardData

    env = str(origin.settings.get("HANABI_ENV", "hanabi"))
    title = f"{env.capitalize()} {', '.join(players)}"
    results = [one for one in origin.results if one.players & {*players}]
    data = ModelCardData(
        base_model=base if is_on_hub else None,
        base_model_relation="adapter" if is_on_hub else None,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=[env, "grpo", "lora", "multi-agent", "reinforcement-learning"],
        model_name=title,
    )
    saved = origin.saved
    facts: dict[str, Any] = {
        "base model": base,
        "weights of the base model (fingerprint)": saved.facts.get("model_fingerprint", "unknown"),
        "optimizer steps": saved.step,
        "LoRA rank": saved.lora_rank,
        "played": ", ".join(presets(origin)) or "unknown",
        "score of the last training games": origin.score.text if origin.score else "unknown",
        **origin.settings,
    }
    partner = (
        next(iter(registry.get(env).policies), "random") if env in registry.names() else "random"
    )
    partners = [partner] * (int(origin.settings.get("HANABI_PLAYERS", 2)) - 1)
    found = templates(autoescape=False)
    found.filters["cell"] = table_cell
    text = found.get_template("card.md.j2").render(
        title=title,
        env=env,
        players=players,
        base=base,
        facts=facts.items(),
        results=[_row(one) for one in results],
        settings=_typed(origin, base),
        lineup="FOLDER" if len(players) > 1 else ",".join(["FOLDER", *partners]),
        games=(folder / "episodes").is_dir(),
        is_on_hub=is_on_hub,
        known=bool(origin.results),
    )
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n").save(folder / "README.md")


def presets(origin: Origin) -> list[str]:
    """Return what was trained on, by name; a hash stands for rules that this version does not
    have.
    """
    if origin.settings.get("HANABI_PRESET"):
        return [str(origin.settings["HANABI_PRESET"])]
    names: dict[str, str] = {}
    for name, preset in PRESETS.items():
        for players in preset.players:
            names.setdefault(make_spec(name, players).hash, name)
    return [names.get(spec_hash, spec_hash) for spec_hash in spec_hashes(origin.saved.facts)]


def _row(one: PlayedResult) -> tuple[object, ...]:
    found, result = one.result.estimate, one.result
    return (
        one.lineup,
        f"{result.preset}, {result.num_players} players",
        f"{found.num_tasks} ({result.suite}, {found.num_starts} starts)",
        "-" if result.temperature is None else f"{result.temperature:g}",
        f"{found.mean:.3f} ± {found.standard_error:.3f}",
        f"{result.score_range[1]:g}",
    )


def _typed(origin: Origin, base: str) -> str:
    """Return the settings of training in front of a command."""
    values: dict[str, Any] = {"MODEL": base, "LORA_RANK": origin.saved.lora_rank}
    values |= {name: origin.settings[name] for name in _TO_TYPE if name in origin.settings}
    if "HANABI_PRESET" not in values and len(named := presets(origin)) == 1 and " " not in named[0]:
        values["HANABI_PRESET"] = named[0]
    return "".join(f"{name}={shlex.quote(typed(value))} " for name, value in values.items())
