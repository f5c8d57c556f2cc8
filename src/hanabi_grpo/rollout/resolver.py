"""From the words of a line-up to who really sits there: versions looked up, checkpoints lent to the server."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.lineups import SERVED, adapter_word, checkpoint_word
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import find_run, run_of
from hanabi_grpo.runs.saved_adapters import SAME_FACTS, SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.seating import BASE
from hanabi_grpo.types import SHARED_ADAPTER, adapter_of, player_name


class Lender(Protocol):
    """What resolving needs of `RolloutClient`."""

    def identity(self) -> dict[str, Any]:
        """Return what the server is and holds."""

    def lend(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        """Give the server an adapter that never changes; returns its seat word."""


class SeatResolver:
    """Resolves words against one server; versions stay those of the first look, so that all games meet the same."""

    def __init__(self, client: Lender | None, settings: Settings) -> None:
        """Bind a server.

        Args:
            client: The server; None where only scripts play.
            settings: MODEL, for checkpoints that do not say which base model they belong to.
        """
        self._client = client
        self._settings = settings
        self._identity: dict[str, Any] | None = None
        self._read: dict[Path, tuple[Path, SavedAdapters]] = {}
        """Folder as typed to its checkpoint: a run that is trained on meanwhile stays what it was at the first look."""
        self._lent: dict[tuple[Path, str], str] = {}

    def seats(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the seat word of every seat, see `seating`.

        Raises:
            SettingsError: A checkpoint that cannot be read, lacks the adapter, or is of another base model.
            ServerError: The server holds no such adapter, or refuses a checkpoint.
        """
        return tuple(self.seat(word, player) for player, word in enumerate(words))

    def seat(self, word: str, player: int) -> str:
        """Return the seat word of one seat; see `seats`."""
        if word in SCRIPTED or word == BASE:
            return word
        named = (player_name(player), None) if word == SERVED else adapter_word(word)
        if named is not None:
            return self._served(word, *named)
        found = checkpoint_word(word)
        if found is None:
            raise SettingsError(f"{word!r}: nobody that can be seated.")
        return self._checkpoint(found[0], found[1], player)

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

    def run_folders(self, words: Sequence[str]) -> tuple[Path, ...]:
        """Return the folders on this machine of the runs whose adapters sit behind the words, each once."""
        found: list[Path | None] = []
        for word in words:
            if word == SERVED or adapter_word(word):
                found.append(find_run(self._look().get("run")))
            elif word not in (*SCRIPTED, BASE) and (checkpoint := checkpoint_word(word)):
                found.append(run_of(self._read[checkpoint[0]][0]) if checkpoint[0] in self._read else None)
        return tuple(dict.fromkeys(folder for folder in found if folder is not None))

    def _served(self, word: str, adapter: str, version: int | None) -> str:
        held = self._look()["versions"]
        name = adapter_of(adapter, held) if word == SERVED else adapter
        if name not in held:
            known = ", ".join(f"{one}@{number}" for one, number in held.items()) or "none"
            raise ServerError(
                f"{word}: the server serves no adapter for {adapter} (held: {known}). Train first, name a checkpoint, "
                f"or play {BASE}."
            )
        if version is not None and version != held[name]:
            raise ServerError(
                f"{word}: the server serves {name}@{held[name]}; it keeps no other version. For an earlier one name "
                "the checkpoint."
            )
        return f"{name}@{held[name]}"

    def _checkpoint(self, folder: Path, adapter: str | None, player: int) -> str:
        if folder not in self._read:
            newest = newest_checkpoint(folder)
            self._read[folder] = newest, read_adapters(newest)
        checkpoint, saved = self._read[folder]
        name = adapter or adapter_of(player_name(player), saved.adapters)
        if name not in saved.adapters:
            raise SettingsError(
                f"{checkpoint}: has no adapter {name if adapter else f'{player_name(player)} or {SHARED_ADAPTER}'}, "
                f"only {', '.join(saved.adapters)}; choose one: {checkpoint}:{next(iter(saved.adapters))}"
            )
        if (checkpoint, name) not in self._lent:
            self._check_base(checkpoint, saved)
            weights, config = saved.adapters[name]
            assert self._client is not None  # `_check_base` has asked it
            self._lent[checkpoint, name] = self._client.lend(saved.step, weights, config)
        return self._lent[checkpoint, name]

    def _check_base(self, checkpoint: Path, saved: SavedAdapters) -> None:
        identity = self._look()
        facts = {name: saved.facts[name] for name in SAME_FACTS if name in saved.facts}
        if not facts:
            facts = {"model_fingerprint": model_fingerprint(resolve_model(self._settings.model))}
        for name, value in facts.items():
            if identity[name] != value:
                raise SettingsError(
                    f"{checkpoint}: its {name} is {value}, the server's {identity[name]} ({identity['model']}); start "
                    "the server with the MODEL and HANABI_THINKING that it was trained on."
                )

    def _look(self) -> dict[str, Any]:
        if self._client is None:
            raise SettingsError("this line-up needs a rollout server: start one, or add --own-server.")
        if self._identity is None:
            self._identity = self._client.identity()
        return self._identity
