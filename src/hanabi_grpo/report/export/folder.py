"""The exported folder: it appears at once, by a rename, or not at all.

FOLDER/ ├── README.md  manifest.json                 the card; step, base model and hashes: a
checkpoint to every command ├── episodes/step_50.jsonl                   sample games, where some
were recorded ├── player_0/ │   └── adapter_config.json  adapter_model.safetensors └── player_1/ …

PEFT makes one model of base and adapter, for software without PEFT:
`PeftModel.from_pretrained(base, "FOLDER/player_0").merge_and_unload().save_pretrained(…)`.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.export.card import write_card
from hanabi_grpo.report.export.origin import PUBLISHED, Origin
from hanabi_grpo.runs.manifest import write_manifest
from hanabi_grpo.runs.run_folder import new_folder, write_json_atomic
from hanabi_grpo.runs.saved_adapters import CONFIG, SAME_FACTS, WEIGHTS
from hanabi_grpo.tracking.artifact import base_name, write_sample_games


def export(
    origin: Origin,
    out: Path,
    *,
    players: Sequence[str],
    base_model: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Write the folder `out` with the adapters of some players; a SettingsError where it exists or
    cannot be written.

    `base_model` is the hub name of the base model, None: as it was trained on, if that is one.
    `say` receives what a person should know."""
    if out.exists() or out.is_symlink():
        raise SettingsError(f"--out {out}: exists already; choose a folder that does not.")
    base, is_on_hub = (base_model, True) if base_model is not None else base_name(origin.model)
    if not is_on_hub:
        say(
            f"the base model is called {base} on the card; --base-model ORG/NAME says what it is "
            "on the hub."
        )
    try:
        with new_folder(out) as whole:
            for name in players:
                _write_adapter(origin, name, whole / name, base)
            any(write_sample_games(place, whole, origin.saved.step) for place in origin.places)
            write_card(whole, origin, players, base=base, is_on_hub=is_on_hub)
            _seal(whole, origin, players)
    except OSError as error:
        raise SettingsError(
            f"--out {out}: cannot be written ({error.strerror or error}); nothing half-written is "
            "left."
        ) from error


def _write_adapter(origin: Origin, name: str, folder: Path, base: str) -> None:
    from peft import LoraConfig

    weights, wire = origin.saved.adapters[name]
    folder.mkdir(parents=True)
    given = {
        key: value for key, value in wire.items() if key not in ("peft_type", "inference_mode")
    }
    try:
        config = LoraConfig(**given, base_model_name_or_path=base, inference_mode=True)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{origin.folder}/{name}/{CONFIG}: no LoRA configuration ({error})."
        ) from error
    config.save_pretrained(str(folder))
    # PEFT writes a set, whose order is random; a server names adapters by their configuration.
    written = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    write_json_atomic(folder / CONFIG, {**written, "target_modules": wire["target_modules"]})
    (folder / WEIGHTS).write_bytes(weights)


def _seal(folder: Path, origin: Origin, players: Sequence[str]) -> None:
    kept = ("spec_hashes", "board_hashes", *SAME_FACTS)
    facts: dict[str, Any] = {
        name: origin.saved.facts[name] for name in kept if name in origin.saved.facts
    }
    model, is_on_hub = base_name(origin.model)
    facts |= {"model": model} if is_on_hub else {}
    facts |= {"adapters": list(players), PUBLISHED: dict(origin.settings)}
    write_manifest(folder, step=origin.saved.step, facts=facts)
