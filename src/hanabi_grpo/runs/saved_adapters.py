"""Adapters of a checkpoint folder, ready to upload to a rollout server."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, MAX_WEIGHTS_BYTES, read_bytes
from hanabi_grpo.runs.adapter_config import adapter_config_for_wire, unsupported_keys
from hanabi_grpo.runs.checkpoints import find_checkpoint
from hanabi_grpo.runs.manifest import CHECKPOINT_NAME, MANIFEST, Manifest, read_manifest
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, adapter_of, player_names

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
"""The two files of an adapter, as PEFT names them."""
SAME_FACTS = {
    "model_fingerprint": "base model",
    "tokenizer_hash": "tokenizer",
    "chat_hash": "chat format",
}
"""Facts of a manifest that must be the same as the server's, with their names in messages."""
BASES = "bases"
"""Key of the facts of each player's base model in manifest and server, if there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapters:
    """Every adapter of one checkpoint."""

    step: int
    """Optimizer steps behind the weights."""
    lora_rank: int
    """LoRA rank, the largest of all adapters."""
    adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]
    """Safetensors bytes and PEFT configuration of each adapter, by its name, names ascending."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts of the manifest, e.g. {"model_fingerprint": "9f3c…"}."""

    def choose(self, player: str, adapter: str | None = None) -> str:
        """Return the name of the adapter that plays for a player.

        Args:
            player: E.g. "player_1".
            adapter: Name of an adapter; None: the player's adapter, or the shared one.

        Raises:
            SettingsError: There is no such adapter.
        """
        name = adapter or adapter_of(player, self.adapters)
        if name not in self.adapters:
            raise SettingsError(
                f"no adapter {adapter or player} in it; it has {', '.join(self.adapters)}. Append "
                f":{next(iter(self.adapters))} to the folder to choose one."
            )
        return name


def read_adapters(folder: Path) -> SavedAdapters:
    """Read `checkpoint-N/<adapter>/{adapter_config.json,adapter_model.safetensors}`.

    One player's folder, as `hanabi-grpo export` writes it, holds the two files itself; its manifest
    names the player. The bytes are compared with the manifest's hashes; other files of the
    checkpoint may be missing. A folder without a manifest is read unchecked.

    Raises:
        SettingsError: The folder is not such a folder, or is damaged.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder}: no such folder; give a run's checkpoint-N.")
    try:
        manifest = read_manifest(folder) if (folder / MANIFEST).exists() else None
    except RunFolderError as error:
        raise SettingsError(f"{error} Use another checkpoint.") from error
    adapters = {}
    for name, weights in _weight_files(folder, manifest).items():
        adapters[name] = _read_adapter(folder, weights, manifest)
    if not adapters:
        raise SettingsError(f"{folder}: no */{WEIGHTS} in it; give a run's checkpoint-N.")
    if manifest is not None:
        _check_all_there(folder, manifest, adapters)
    rank = _largest_rank(folder, adapters)
    return SavedAdapters(
        step=_step(folder, manifest),
        lora_rank=rank,
        adapters=adapters,
        facts=manifest.facts if manifest else {},
    )


def newest_checkpoint(folder: Path) -> Path:
    """Return the folder of a checkpoint; for a run (see `run_home`) its newest complete one.

    The folder itself is returned if it is a checkpoint, or a run without checkpoints.

    Raises:
        SettingsError: There is no such folder, or every checkpoint of the run is damaged.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder}: no such folder; give a run, or its checkpoint-N.")
    folder = run_home(folder)
    is_checkpoint = CHECKPOINT_NAME.fullmatch(folder.resolve().name) is not None
    if is_checkpoint or not any(folder.glob("checkpoint-*")):
        return folder
    try:
        return find_checkpoint(folder).folder
    except RunFolderError as error:
        raise SettingsError(str(error)) from error


def check_same_base(
    folder: Path,
    saved: SavedAdapters,
    server: Mapping[str, Any],
    *,
    adapter: str | None = None,
    player: str | None = None,
) -> bool:
    """Check that adapters were trained on the base model of a server.

    Args:
        folder: Folder of the adapters, for messages.
        saved: The adapters.
        server: The identity of the server, by the keys of SAME_FACTS; "bases" has those of each
            player if there are several.
        adapter: The only adapter to check; None: all of them.
        player: Whose base model it must be; None: any of the server's.

    Returns:
        Whether the base model of the adapters is known at all.

    Raises:
        SettingsError: They were trained on another base model.
    """
    names = list(saved.adapters) if adapter is None else [adapter]
    is_known = True
    for name in names or [SHARED_ADAPTER]:
        facts = facts_of_base(saved.facts, name)
        problems = []
        candidates = _bases_of(server, player)
        for base in candidates:
            problem = _difference(facts, base)
            if problem is None:
                break
            problems.append(problem)
        if len(problems) == len(candidates):
            whose = f": {name}" if saved.facts.get(BASES) or server.get(BASES) else ""
            raise SettingsError(
                f"{folder}{whose} was trained with another {problems[0]}. Use a checkpoint of a "
                "run with this MODEL, or start the server with that run's MODEL and "
                "HANABI_THINKING."
            )
        is_known = is_known and facts.keys() >= SAME_FACTS.keys()
    return is_known


def check_same_base_of_each(
    checkpoint: Path, facts: Mapping[str, Any], server: Mapping[str, Any]
) -> None:
    """Check that each player's base model is the one that a checkpoint names for it.

    Args:
        checkpoint: The checkpoint, for messages.
        facts: The facts of its manifest.
        server: The identity of the server, as for `check_same_base`.

    Raises:
        SettingsError: A player has a different one.
    """
    for name in facts.get("adapters", ()):
        problem = _difference(facts_of_base(facts, name), facts_of_base(server, name))
        if problem is not None:
            raise SettingsError(
                f"{checkpoint}: {name} was trained with another {problem}. Use the MODEL "
                "and HANABI_THINKING of the run, or start a new one (HANABI_START_FROM)."
            )


def facts_of_base(facts: Mapping[str, Any], adapter: str) -> Mapping[str, Any]:
    """Return the facts of a manifest or a server about the base model of one adapter.

    Args:
        facts: By the keys of SAME_FACTS; "bases" has those of each player if there are several.
        adapter: E.g. "player_1".
    """
    bases = facts.get(BASES) or {}
    base: Mapping[str, Any] = bases.get(adapter, facts)
    return base


def _bases_of(server: Mapping[str, Any], player: str | None) -> list[Mapping[str, Any]]:
    """Return the base models of a server that an adapter may belong to, at least one."""
    if player is not None:
        return [facts_of_base(server, player)]
    different = {str(base): base for base in (server.get(BASES) or {}).values()}
    return list(different.values()) or [server]


def _difference(facts: Mapping[str, Any], base: Mapping[str, Any]) -> str | None:
    """Return how an adapter's base model differs from a server's; None: no known difference."""
    for name, what in SAME_FACTS.items():
        if name in facts and name in base and facts[name] != base[name]:
            return f"{what}: {facts[name]}, the server has {base[name]}"
    return None


def _weight_files(folder: Path, manifest: Manifest | None) -> dict[str, Path]:
    """Return the weights' file of each adapter, by the adapter's name."""
    files = {}
    for path in sorted(folder.glob(f"*/{WEIGHTS}")):
        files[path.parent.name] = path
    if files or not (folder / WEIGHTS).is_file():
        return files
    # The folder of one player.
    names = manifest.facts.get("adapters") if manifest else None
    known = (*player_names(MAX_PLAYERS), SHARED_ADAPTER)
    if not isinstance(names, list) or len(names) != 1 or names[0] not in known:
        raise SettingsError(
            f"{folder}: cannot tell which player this adapter belongs to without a {MANIFEST}. "
            "Move it to checkpoint-N/player_0 (N: its optimizer steps), and name checkpoint-N."
        )
    return {str(names[0]): folder / WEIGHTS}


def _read_adapter(
    folder: Path, weights: Path, manifest: Manifest | None
) -> tuple[bytes, Mapping[str, Any]]:
    """Return an adapter's safetensors bytes and PEFT configuration.

    Args:
        folder: The checkpoint's folder.
        weights: The file of its weights.
        manifest: The checkpoint's; None: nothing can be compared.
    """
    try:
        stored_config = _read_file(folder, weights.parent / CONFIG, manifest, MAX_DOCUMENT_BYTES)
        config = json.loads(stored_config.decode("utf-8"))
        _check_supported(weights.parent, config)
        stored_weights = _read_file(folder, weights, manifest, MAX_WEIGHTS_BYTES)
        return stored_weights, adapter_config_for_wire(config)
    except SettingsError:
        # A SettingsError is a ValueError as well.
        raise
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise SettingsError(
            f"{weights.parent}: cannot be read as a PEFT adapter ({error})."
        ) from error


def _check_supported(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a PEFT configuration that is more than rank, alpha and modules.

    Args:
        folder: The adapter's folder, for messages.
        config: The content of its adapter_config.json.
    """
    keys = unsupported_keys(config)
    if keys:
        given = ", ".join(f"{key}={config[key]!r}" for key in keys)
        raise SettingsError(
            f"{folder}: its {CONFIG} has {given}, which is not supported: the weights would be "
            "used as if it were not there. Use an adapter with one rank and one alpha for all its "
            "modules, or merge this one into the base model."
        )


def _read_file(folder: Path, path: Path, manifest: Manifest | None, limit: int) -> bytes:
    """Return a file's bytes, which must have the hash in the manifest.

    Args:
        folder: The checkpoint's folder.
        path: A file in it.
        manifest: The checkpoint's; None: nothing can be compared.
        limit: Maximum size of the file in bytes.
    """
    data = read_bytes(path, limit)
    if manifest is None:
        return data
    name = path.relative_to(folder).as_posix()
    entry = manifest.files.get(name)
    if entry is None:
        raise SettingsError(
            f"{folder}: {name} is not listed in {MANIFEST}. Use another checkpoint."
        )
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != entry.sha256:
        raise SettingsError(
            f"{folder}: {name} has sha256 {sha256}, {MANIFEST} says {entry.sha256}. Use another "
            "checkpoint."
        )
    return data


def _check_all_there(folder: Path, manifest: Manifest, adapters: Mapping[str, object]) -> None:
    """Refuse a checkpoint that lacks an adapter of its manifest."""
    for name in sorted(manifest.files):
        adapter, slash, file = name.rpartition("/")
        if slash and file == WEIGHTS and adapter not in adapters:
            raise SettingsError(
                f"{folder}: {name} is missing; {MANIFEST} lists it. Use another checkpoint."
            )


def _largest_rank(folder: Path, adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]) -> int:
    """Return the largest LoRA rank of all adapters."""
    ranks = []
    for name, (_, config) in adapters.items():
        rank = config.get("r")
        if type(rank) is not int:
            raise SettingsError(
                f"{folder}: {name}/{CONFIG} has the LoRA rank {rank!r}, which must be "
                "a whole number. Use another checkpoint."
            )
        ranks.append(rank)
    return max(ranks)


def _step(folder: Path, manifest: Manifest | None) -> int:
    """Return the optimizer steps behind a checkpoint, by its manifest and by its name."""
    match = CHECKPOINT_NAME.fullmatch(folder.resolve().name)
    named_step = int(match[1]) if match else None
    if manifest is None:
        if named_step is None:
            raise SettingsError(
                f"{folder}: cannot tell how many steps it was trained for without a "
                f"{MANIFEST}; name the folder checkpoint-N."
            )
        return named_step
    if named_step is not None and named_step != manifest.step:
        raise SettingsError(f"{folder}: its {MANIFEST} is for step {manifest.step}; rename it.")
    return manifest.step
