"""The exported folder, written atomically: it appears whole, by a rename, or not at all.

    FOLDER/
    ├── README.md                the card
    ├── manifest.json            step, base model and hashes: a checkpoint to every command
    ├── episodes/step_50.jsonl   sample games, where some were recorded
    ├── player_0/
    │   ├── adapter_config.json
    │   └── adapter_model.safetensors
    └── player_1/ …

For software without PEFT, merge the adapter into the base model:
`PeftModel.from_pretrained(base, "FOLDER/player_0").merge_and_unload().save_pretrained(…)`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.export.card import write_card
from hanabi_grpo.report.export.origin import PUBLISHED, Origin
from hanabi_grpo.runs.manifest import write_manifest
from hanabi_grpo.runs.run_folder import new_folder, write_json_atomic
from hanabi_grpo.runs.saved_adapters import CONFIG, SAME_FACTS, WEIGHTS, facts_of_base
from hanabi_grpo.settings.base_models import model_entries, names_several
from hanabi_grpo.settings.per_player import OTHERS
from hanabi_grpo.tracking.artifact import base_name, write_sample_games

_NOT_OF_LORA = ("peft_type", "inference_mode")
"""Keys of a stored configuration that `LoraConfig` does not take, or that are set here."""
_KEPT_FACTS = ("spec_hashes", "board_hashes", *SAME_FACTS)
"""Facts of the checkpoint's manifest that are repeated."""
_MET_FACTS = ("taught_by", "trained_with", "started_from")
"""Facts about teachers, partners and starts, by which `adhoc` tells who is a stranger. They are
repeated with shortened paths: others should not read folders of this machine.
"""
_SHOWN_PARTS = 2
"""Last parts of an absolute path that are shown, e.g. "run/checkpoint-50"."""


def export(
    origin: Origin,
    out: Path,
    *,
    players: Sequence[str],
    base_model: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Write a folder with the adapters of some players.

    Args:
        origin: Where the adapters come from.
        out: The folder, which must not exist.
        players: Names of the adapters.
        base_model: Hub name of the base model; None: the name used in training, if that is one.
        say: Receives messages for the user.

    Raises:
        SettingsError: The folder exists or cannot be written, or the players have different base
            models.
    """
    if out.exists() or out.is_symlink():
        raise SettingsError(f"--out {out}: already exists; choose a folder that does not.")
    origin = _of_one_base(origin, players)
    base, is_on_hub = base_name(origin.model)
    if base_model is not None:
        base = base_model
        is_on_hub = True
    if not is_on_hub:
        say(
            f"the card calls the base model {base}; use --base-model ORG/NAME to give its name on "
            "the hub."
        )
    try:
        with new_folder(out) as folder:
            for name in players:
                _write_adapter(origin, name, folder / name, base)
            for source in origin.places:
                if write_sample_games(source, folder, origin.saved.step):
                    break
            write_card(folder, origin, players, base=base, is_on_hub=is_on_hub)
            _write_manifest(folder, origin, players)
    except OSError as error:
        raise SettingsError(
            f"--out {out}: cannot be written ({error.strerror or error}); no partial output is "
            "left."
        ) from error


def _of_one_base(origin: Origin, players: Sequence[str]) -> Origin:
    """Return an origin with the base model of some players of a team.

    Raises:
        SettingsError: They have different base models, and a folder's card names only one.
    """
    if not names_several(origin.model):
        return origin
    models = model_entries(origin.model)
    bases = {name: models.get(name) or models[OTHERS] for name in players}
    if len(set(bases.values())) > 1:
        each = ", ".join(f"{name} on {base_name(base)[0]}" for name, base in bases.items())
        raise SettingsError(
            f"{origin.folder}: its players have different base models ({each}), but the card of a "
            "folder names only one; export a single player by appending :player_0 to the folder."
        )
    facts = {**origin.saved.facts, **facts_of_base(origin.saved.facts, players[0])}
    return replace(origin, model=bases[players[0]], saved=replace(origin.saved, facts=facts))


def _write_adapter(origin: Origin, name: str, folder: Path, base: str) -> None:
    """Write one adapter as PEFT does, for a base model of this name."""
    from peft import LoraConfig

    weights, stored_config = origin.saved.adapters[name]
    folder.mkdir(parents=True)
    options = dict(stored_config)
    for key in _NOT_OF_LORA:
        options.pop(key, None)
    try:
        config = LoraConfig(**options, base_model_name_or_path=base, inference_mode=True)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{origin.folder}/{name}/{CONFIG}: not a LoRA configuration ({error})."
        ) from error
    config.save_pretrained(str(folder))
    # PEFT writes a set, whose order is random; a server names adapters by their configuration.
    written = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    written["target_modules"] = stored_config["target_modules"]
    write_json_atomic(folder / CONFIG, written)
    (folder / WEIGHTS).write_bytes(weights)


def _write_manifest(folder: Path, origin: Origin, players: Sequence[str]) -> None:
    """Write the manifest, which makes the folder a checkpoint."""
    facts: dict[str, Any] = {}
    for name in _KEPT_FACTS:
        if name in origin.saved.facts:
            facts[name] = origin.saved.facts[name]
    for name in _MET_FACTS:
        if name in origin.saved.facts:
            facts[name] = _with_short_paths(origin.saved.facts[name])
    model, is_on_hub = base_name(origin.model)
    if is_on_hub:
        facts["model"] = model
    facts["adapters"] = list(players)
    facts[PUBLISHED] = dict(origin.settings)
    write_manifest(folder, step=origin.saved.step, facts=facts)


def _with_short_paths(value: Any) -> Any:
    """Return a JSON value in which each absolute path is only its last parts."""
    if isinstance(value, Mapping):
        return {_with_short_paths(key): _with_short_paths(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("/"):
        return "/".join(Path(value).parts[-_SHOWN_PARTS:])
    return value
