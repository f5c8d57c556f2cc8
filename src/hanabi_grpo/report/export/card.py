"""The README of an exported folder: what it is, how well it plays, and its limits.

Its text is templates/card.md.j2.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.rules import PRESETS, make_spec
from hanabi_grpo.evaluation.sheets import with_error
from hanabi_grpo.evaluation.tables import sampling_name
from hanabi_grpo.report.export.origin import Origin, PlayedResult
from hanabi_grpo.report.page import templates
from hanabi_grpo.runs.manifest import spec_hashes
from hanabi_grpo.runs.saved_adapters import SavedAdapters
from hanabi_grpo.settings import variables
from hanabi_grpo.settings.variables import typed
from hanabi_grpo.tracking.artifact import table_cell

_GAME = "game"
"""Section of the settings that decide what players read and may reply."""
_NOT_OF_GAMES = re.compile(r"HANABI_REWARD_.*|HANABI_OTHER_PLAY")
"""Those of them that matter for training only."""
_DEFAULT_PARTNER = "random"
"""Script in the card's example if the environment is not installed or has no scripts."""


def write_card(
    folder: Path, origin: Origin, players: Sequence[str], *, base: str, is_on_hub: bool
) -> None:
    """Write README.md of a folder.

    Args:
        folder: The exported folder.
        origin: Where the adapters come from.
        players: Names of the adapters in the folder.
        base: Name of the base model.
        is_on_hub: Whether `base` is a hub name, or only that of a folder.

    Raises:
        OSError: The file cannot be written.
    """
    from huggingface_hub import ModelCard, ModelCardData

    env = str(origin.settings.get("HANABI_ENV", "hanabi"))
    title = f"{env.capitalize()} {', '.join(players)}"
    data = ModelCardData(
        base_model=base if is_on_hub else None,
        base_model_relation="adapter" if is_on_hub else None,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=[env, "grpo", "lora", "multi-agent", "reinforcement-learning"],
        model_name=title,
    )
    rows = []
    for result in origin.results:
        if result.players & set(players):
            rows.append(_row(result))
    environment = templates(autoescape=False)
    environment.filters["cell"] = table_cell
    text = environment.get_template("card.md.j2").render(
        title=title,
        env=env,
        players=players,
        base=base,
        facts=_facts(origin, base).items(),
        results=rows,
        settings=_settings_prefix(origin, base),
        lineup=_example_lineup(origin, env, players),
        games=(folder / "episodes").is_dir(),
        is_on_hub=is_on_hub,
        known=bool(origin.results),
    )
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n").save(folder / "README.md")


def _facts(origin: Origin, base: str) -> dict[str, Any]:
    """Return the table at the top of the card."""
    saved = origin.saved
    return {
        "base model": base,
        "base model weights (fingerprint)": saved.facts.get("model_fingerprint", "unknown"),
        "optimizer steps": saved.step,
        "LoRA rank": _ranks(saved),
        "trained on": ", ".join(presets(origin)) or "unknown",
        "score of the last training games": origin.score.text if origin.score else "unknown",
        **origin.settings,
    }


def _ranks(saved: SavedAdapters) -> str:
    """Return the LoRA rank of all adapters, or of each."""
    ranks = {name: config["r"] for name, (_, config) in saved.adapters.items()}
    if len(set(ranks.values())) == 1:
        return str(saved.lora_rank)
    return ", ".join(f"{name} {rank}" for name, rank in ranks.items())


def _example_lineup(origin: Origin, env: str, players: Sequence[str]) -> str:
    """Return the lineup of the card's command: a whole team alone, a single player with scripts."""
    if len(players) > 1:
        return "FOLDER"
    partner = _DEFAULT_PARTNER
    if env in registry.names():
        partner = next(iter(registry.get(env).policies), _DEFAULT_PARTNER)
    num_players = int(origin.settings.get("HANABI_PLAYERS", 2))
    return ",".join(["FOLDER", *[partner] * (num_players - 1)])


def presets(origin: Origin) -> list[str]:
    """Return the presets that were trained on.

    A hash stands for rules that this version does not have.
    """
    preset = origin.settings.get("HANABI_PRESET")
    if preset:
        return [str(preset)]
    names: dict[str, str] = {}
    for name, board in PRESETS.items():
        for players in board.players:
            names.setdefault(make_spec(name, players).hash, name)
    presets = []
    for spec_hash in spec_hashes(origin.saved.facts):
        # Behind a dash it names the deductions and the like, which are settings of their own.
        board_hash = spec_hash.partition("-")[0]
        presets.append(names.get(board_hash, spec_hash))
    return list(dict.fromkeys(presets))


def _row(played: PlayedResult) -> tuple[object, ...]:
    """Return a row of the card's table of results."""
    result = played.result
    estimate = result.estimate
    return (
        played.lineup,
        f"{result.preset}, {result.num_players} players, rules {result.spec_hash}",
        f"{estimate.num_tasks} ({result.suite}, {estimate.num_starts} starts)",
        sampling_name(result) or "-",
        with_error(estimate.mean, estimate.standard_error),
        f"{result.score_range[1]:g}",
    )


def _settings_prefix(origin: Origin, base: str) -> str:
    """Return the settings of training as a shell prefix of a command."""
    values: dict[str, Any] = {"MODEL": base, "LORA_RANK": origin.saved.lora_rank}
    env = str(origin.settings.get("HANABI_ENV", "hanabi"))
    for variable in variables(env):
        if variable.section != _GAME or _NOT_OF_GAMES.fullmatch(variable.env):
            continue
        value = origin.settings.get(variable.env)
        # A default may be another one on the reader's machine.
        is_default = typed(value) == variable.cpu == variable.gpu
        if value is not None and not is_default:
            values[variable.env] = value
    if "HANABI_PRESET" not in values:
        names = presets(origin)
        # Rules that this version does not have are named by their hash.
        if len(names) == 1 and names[0] in PRESETS:
            values["HANABI_PRESET"] = names[0]
    prefix = ""
    for name, value in values.items():
        prefix += f"{name}={shlex.quote(typed(value))} "
    return prefix
