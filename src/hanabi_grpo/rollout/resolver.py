"""From the references of a line-up to who really sits there: versions looked up, checkpoints lent to the server."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import find_run, run_of
from hanabi_grpo.runs.saved_adapters import SAME_FACTS, SavedAdapters, check_same_base, newest_checkpoint, read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import BASE, AdapterRef, CheckpointRef, Place, Ref, Role, ScriptRef
from hanabi_grpo.tracking.checkpoints import local_folder
from hanabi_grpo.types import adapter_of, player_name


class Lender(Protocol):
    """What resolving needs of `RolloutClient`."""

    def identity(self) -> dict[str, Any]:
        """Return what the server is and holds."""

    def lend(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        """Give the server an adapter that never changes; returns its seat word."""


class SeatResolver:
    """Resolves references against one server; versions stay those of the first look: all games meet the same."""

    def __init__(self, client: Lender | None, settings: Settings) -> None:
        """Bind a server.

        Args:
            client: The server; None where only scripts play.
            settings: MODEL, for checkpoints that do not say which base model they belong to.
        """
        self._client = client
        self._settings = settings
        self._identity: dict[str, Any] | None = None
        self._read: dict[Place, tuple[Path, SavedAdapters]] = {}
        """Folder as typed to its checkpoint: a run that is trained on meanwhile stays what it was at the first look."""
        self._lent: dict[tuple[Path, str], str] = {}

    def seats(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Return what every seat is on the wire, see `refs`.

        Raises:
            SettingsError: A checkpoint that cannot be read, lacks the adapter, or is of another base model.
            ServerError: The server holds no such adapter, or refuses a checkpoint.
        """
        return tuple(self.seat(ref, player) for player, ref in enumerate(refs))

    def seat(self, ref: Ref, player: int) -> str:
        """Return what one seat is on the wire; see `seats`."""
        match ref:
            case ScriptRef() | Role.BASE:
                return str(ref)
            case Role.SERVED:
                return self._served(ref, player_name(player), None)
            case AdapterRef(adapter=adapter, version=version):
                return self._served(ref, adapter, version)
            case CheckpointRef(place=place, adapter=chosen):
                return self._checkpoint(local_folder(place), chosen, player)
        raise SettingsError(f"{ref}: nobody that a server can seat.")

    def lend_again(self) -> None:
        """Forget what was lent; the server dropped it, or is another one by now."""
        self._lent.clear()

    def digests(self) -> dict[str, str]:
        """Return the digest of the weights that the server serves under each adapter's name; names repeat over runs."""
        adapters = self._look()["adapters"] if self._client else {}
        return {name: str(held["sha256"]) for name, held in adapters.items()}

    def model(self) -> str:
        """Return the fingerprint of the server's base model, and of how it is spoken to."""
        identity = self._look()
        return "/".join(str(identity[name]) for name in SAME_FACTS)

    def run_folders(self, refs: Sequence[Ref]) -> tuple[Path, ...]:
        """Return the folders on this machine of the runs whose adapters sit in the seats, each once."""
        found: list[Path | None] = []
        for ref in refs:
            if isinstance(ref, AdapterRef) or ref is Role.SERVED:
                found.append(find_run(self._look().get("run")))
            elif isinstance(ref, CheckpointRef) and ref.place in self._read:
                found.append(run_of(self._read[ref.place][0]))
        return tuple(dict.fromkeys(folder for folder in found if folder is not None))

    def _served(self, ref: Ref, adapter: str, version: int | None) -> str:
        held = self._look()["versions"]
        name = adapter_of(adapter, held) if ref is Role.SERVED else adapter
        if name not in held:
            known = ", ".join(f"{one}@{number}" for one, number in held.items()) or "none"
            raise ServerError(
                f"{ref}: the server serves no adapter for {adapter} (held: {known}). Train first, name a checkpoint, "
                f"or play {BASE}."
            )
        if version is not None and version != held[name]:
            raise ServerError(
                f"{ref}: the server serves {name}@{held[name]}; it keeps no other version. For an earlier one name "
                "the checkpoint."
            )
        return f"{name}@{held[name]}"

    def _checkpoint(self, folder: Path, adapter: str | None, player: int) -> str:
        if folder not in self._read:
            newest = newest_checkpoint(folder)
            self._read[folder] = newest, read_adapters(newest)
        checkpoint, saved = self._read[folder]
        try:
            name = saved.choose(player_name(player), adapter)
        except SettingsError as error:
            raise SettingsError(f"{checkpoint}: {error}") from error
        if (checkpoint, name) not in self._lent:
            self._check_base(checkpoint, saved)
            weights, config = saved.adapters[name]
            assert self._client is not None  # `_check_base` has asked it
            self._lent[checkpoint, name] = self._client.lend(saved.step, weights, config)
        return self._lent[checkpoint, name]

    def _check_base(self, checkpoint: Path, saved: SavedAdapters) -> None:
        identity = self._look()
        if not any(name in saved.facts for name in SAME_FACTS):
            own = model_fingerprint(resolve_model(self._settings.model))
            saved = replace(saved, facts={"model_fingerprint": own})
        check_same_base(checkpoint, saved, identity)

    def _look(self) -> dict[str, Any]:
        if self._client is None:
            raise SettingsError("this line-up needs a rollout server: start one, or add --own-server.")
        if self._identity is None:
            self._identity = self._client.identity()
        return self._identity
