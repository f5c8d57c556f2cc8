"""Who sits where: lineups as people type them, and who that is on one server.

A lineup is one reference per seat, e.g. "served" or "player_0@latest,iggi". One alone fills every
seat: that is a team, and each player takes its own seat. A list is rotated through all its seat
orders where games are counted."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.chat import remembered
from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import find_run, recorded_settings, run_of
from hanabi_grpo.runs.saved_adapters import (
    SAME_FACTS,
    SavedAdapters,
    check_same_base,
    newest_checkpoint,
    read_adapters,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import (
    BASE,
    AdapterRef,
    CheckpointRef,
    Place,
    Ref,
    Role,
    ScriptRef,
    UrlRef,
    parse_ref,
    unknown_url,
)
from hanabi_grpo.tracking.checkpoints import local_folder, local_ref
from hanabi_grpo.types import Reply, adapter_of, player_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """Who sits where before any rotation."""

    text: str
    """As it was typed; what tables call it."""
    refs: tuple[Ref, ...]
    """One per seat; what lay elsewhere is a local folder here."""

    @property
    def words(self) -> tuple[str, ...]:
        """The references as text."""
        return tuple(map(str, self.refs))

    @property
    def label(self) -> str:
        """What tables call it where nobody named it: its text, with folders by their last two
        names.
        """
        return ",".join(short_name(word.strip()) for word in self.text.split(","))

    def orders(self, *, rotate: bool = True) -> list[tuple[Ref, ...]]:
        """Return the different seat orders: every rotation of the lineup, or only the one that was
        typed.
        """
        count = len(self.refs) if rotate else 1
        return list(dict.fromkeys(self.refs[start:] + self.refs[:start] for start in range(count)))

    @property
    def needs_server(self) -> bool:
        """True unless scripts and people fill every seat."""
        return not all(isinstance(ref, ScriptRef) or ref is Role.HUMAN for ref in self.refs)


def parse_lineup(
    text: str, num_players: int, *, env: str = "hanabi", human: bool = False
) -> Lineup:
    """Read a lineup for games of an environment; `human` says whether a person may sit there.

    Raises:
        SettingsError: An unknown reference, not one per seat, or a checkpoint that cannot be had.
    """
    typed = [word.strip() for word in text.split(",")]
    if len(typed) not in (1, num_players):
        raise SettingsError(
            f"lineup {text!r}: {len(typed)} words for {num_players} players; give one for every "
            "seat, or one each."
        )
    where, roles, found = (
        f"lineup {text!r}",
        (Role.SERVED, Role.BASE, *([Role.HUMAN] if human else [])),
        {},
    )
    for word in dict.fromkeys(typed):  # each once: what is elsewhere may move between two looks
        if word == Role.HUMAN and not human:
            raise SettingsError(
                f"{where}: people play with hanabi-grpo play; here nobody can be asked."
            )
        ref = parse_ref(
            word, where=where, roles=roles, scripts=registry.get(env).policies, adapters=True
        )
        if isinstance(ref, UrlRef) and human:
            raise SettingsError(
                f"{where}: {word} is asked by the rollout server in games that it plays itself, "
                "not here."
            )
        if (
            isinstance(ref, CheckpointRef)
            and isinstance(ref.place, Path)
            and not ref.place.is_dir()
        ):
            raise SettingsError(
                f"{where}: {ref.place}: no such folder; give a run's folder or its checkpoint-N."
            )
        found[word] = local_ref(ref)
    refs = tuple(found[word] for word in typed)
    return Lineup(text=text.strip(), refs=refs * num_players if len(refs) == 1 else refs)


def short_name(word: str) -> str:
    """Return what a table or a chart calls a reference: a checkpoint by its last two folders."""
    try:
        ref = parse_ref(word, where="", roles=tuple(Role), scripts=(), adapters=True)
    except SettingsError:
        return word
    return ref.label if isinstance(ref, CheckpointRef) else word


class SeatResolver:
    """Resolves references against one server; versions stay those of the first look: all games meet
    the same.
    """

    def __init__(self, client: RolloutClient | None, settings: Settings) -> None:
        """Bind a server, None where only scripts play; MODEL is for checkpoints that do not say
        their base model.
        """
        self._client, self._settings = client, settings
        self._identity: dict[str, Any] | None = None
        self._read: dict[Place, tuple[Path, SavedAdapters]] = {}
        """Folder as typed to its checkpoint: a run that is trained on meanwhile stays what it was
        at the first look.
        """
        self._lent: dict[tuple[Path, str], str] = {}
        self._compared: set[Path] = set()

    def seats(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Return what every seat is on the wire, see `refs`.

        Raises: SettingsError: A checkpoint that cannot be read, lacks the adapter, or is of another
            base model. ServerError: The server holds no such adapter, or refuses a checkpoint.
        """
        return tuple(self.seat(ref, player) for player, ref in enumerate(refs))

    def seat(self, ref: Ref, player: int) -> str:
        """Return what one seat is on the wire; see `seats`."""
        match ref:
            case ScriptRef() | Role.BASE:
                return str(ref)
            case UrlRef() if str(ref) not in (known := self._look().get("partners", {})):
                raise unknown_url(str(ref), known)
            case UrlRef():
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
        """Return who is behind names that repeat: the digest of each served adapter's weights, each
        URL and model.
        """
        look = self._look() if self._client else {"adapters": {}}
        return {name: str(held["sha256"]) for name, held in look["adapters"].items()} | look.get(
            "partners", {}
        )

    def model(self) -> str:
        """Return the fingerprint of the server's base model, and of how it is spoken to."""
        identity = self._look()
        return "/".join(str(identity[name]) for name in SAME_FACTS)

    def run_folders(self, refs: Sequence[Ref]) -> tuple[Path, ...]:
        """Return the folders on this machine of the runs whose adapters sit in the seats, each
        once.
        """
        found: list[Path | None] = []
        for ref in refs:
            if isinstance(ref, AdapterRef) or ref is Role.SERVED:
                found.append(find_run(self._look().get("run")))
            elif isinstance(ref, CheckpointRef) and ref.place in self._read:
                found.append(run_of(self._read[ref.place][0]))
        return tuple(dict.fromkeys(folder for folder in found if folder is not None))

    def compare_messages(self, refs: Sequence[Ref], setup: Setup[Any]) -> None:
        """Warn, once a run, where players in the seats learned this preset by other messages, or
        under other rules.
        """
        config = setup.config.model_dump(mode="json")
        here = {
            f"HANABI_{name.upper()}": value
            for name, value in config.items()
            if not name.startswith("reward_")
        }
        for run in (one for one in self.run_folders(refs) if one not in self._compared):
            self._compared.add(run)
            was = recorded_settings(run)
            other = {
                name: was[name]
                for name, value in here.items()
                if name in was and was[name] != value
            }
            if other and was.get("HANABI_ENV") == setup.env and "HANABI_PRESET" not in other:
                learned = " ".join(f"{name}={value}" for name, value in other.items())
                now = ", ".join(str(here[name]) for name in other)
                said = "%s: learned with %s; here: %s. To play as it learned: export %s"
                logger.warning(said, run, learned, now, learned)

    def _served(self, ref: Ref, adapter: str, version: int | None) -> str:
        held = self._look()["versions"]
        name = adapter_of(adapter, held) if ref is Role.SERVED else adapter
        if name not in held:
            known = ", ".join(f"{one}@{number}" for one, number in held.items()) or "none"
            raise ServerError(
                f"{ref}: the server serves no adapter for {adapter} (held: {known}). Train first, "
                "name a checkpoint, "
                f"or play {BASE}."
            )
        if version not in (None, held[name]):
            raise ServerError(
                f"{ref}: the server serves {name}@{held[name]}; it keeps no other version. For an "
                "earlier one name "
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
            identity = self._look()
            if not any(fact in saved.facts for fact in SAME_FACTS):
                own = model_fingerprint(resolve_model(self._settings.model))
                saved = replace(saved, facts={"model_fingerprint": own})
            check_same_base(checkpoint, saved, identity)
            assert self._client is not None  # `_look` has asked it
            self._lent[checkpoint, name] = self._client.lend(saved.step, *saved.adapters[name])
        return self._lent[checkpoint, name]

    def _look(self) -> dict[str, Any]:
        if self._client is None:
            raise SettingsError(
                "this lineup needs a rollout server: start one, or add --own-server."
            )
        if self._identity is None:
            self._identity = self._client.identity()
        return self._identity


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """A model of a server in one seat of a game that is played here, one request per reply."""

    client: RolloutClient
    name: str
    """The seat's word, e.g. "player_1@7"."""
    max_tokens: int
    temperature: float

    def seat(self, player: int, *, task: Task[Any], game: int) -> "RemoteSeat":
        """Return a private conversation for one game."""
        return RemoteSeat(self, task.environment.system(task.config, player))


@dataclass(frozen=True, slots=True)
class RemoteSeat:
    """One player of one game; the server keeps nothing between two replies."""

    policy: RemotePolicy
    system: str
    said: list[EarlierTurn] = field(default_factory=list)
    """The past turns of its conversation."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask the server, see `RolloutClient.reply`; the calling thread waits for it."""
        text, policy, window = seen.message(), self.policy, seen.window
        asked = ReplyRequest(
            seat=policy.name,
            system=self.system,
            turns=tuple(remembered(self.said, window)),
            fresh=window is not None,
            prompt=text,
            max_tokens=policy.max_tokens,
            temperature=policy.temperature,
        )
        reply = policy.client.reply(asked)
        if not reply.out_of_tokens:
            self.said.append(EarlierTurn(prompt=text, reply_ids=reply.reply_ids))
        return replace(reply, fresh=asked.fresh)
