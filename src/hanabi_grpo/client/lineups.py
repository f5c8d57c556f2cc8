"""Lineups: seat assignments from the command line, and their policies on a server.

A lineup has one policy spec per seat, e.g. "player_0@latest,iggi". A single spec, e.g. "served",
fills every seat: it is a team, and each player takes its own seat. In evaluations, a list is
rotated through all its seat orders.
"""

import logging
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.runs.run_folder import find_run, recorded_settings, run_of
from hanabi_grpo.runs.saved_adapters import (
    BASES,
    SAME_FACTS,
    SavedAdapters,
    check_same_base,
    facts_of_base,
    newest_checkpoint,
    read_adapters,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.base_models import base_of
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
from hanabi_grpo.types import adapter_of, player_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """A seat assignment before any rotation."""

    text: str
    """The lineup, as given on the command line."""
    refs: tuple[Ref, ...]
    """The policy of each seat; a remote checkpoint that was fetched has become a local folder."""

    @property
    def specs(self) -> tuple[str, ...]:
        """The policies as text."""
        return tuple(map(str, self.refs))

    @property
    def label(self) -> str:
        """Default name in tables; a folder by the last two parts of its path."""
        names = [short_name(spec.strip()) for spec in self.text.split(",")]
        return ",".join(names)

    def orders(self, *, rotate: bool = True) -> list[tuple[Ref, ...]]:
        """Return the different seat orders.

        Args:
            rotate: Whether to return every rotation, or only the order that was given.
        """
        count = len(self.refs) if rotate else 1
        # The keys of a dict are an ordered set.
        rotations: dict[tuple[Ref, ...], None] = {}
        for start in range(count):
            rotation = self.refs[start:] + self.refs[:start]
            rotations[rotation] = None
        return list(rotations)

    @property
    def needs_server(self) -> bool:
        """True unless scripts and people fill every seat."""
        return any(map(_is_model, self.refs))


def _is_model(ref: Ref) -> bool:
    """Tell whether a model plays, not a script or a person."""
    return not isinstance(ref, ScriptRef) and ref is not Role.HUMAN


def parse_lineup(
    text: str,
    num_players: int,
    *,
    env: str = "hanabi",
    human: bool = False,
    scripts: Collection[str] | None = None,
    download: bool = True,
) -> Lineup:
    """Read a lineup for games of an environment.

    Args:
        text: One policy spec, or one for each seat with commas in between.
        num_players: Seats of the game.
        env: Name of the environment, whose scripts are allowed.
        human: Whether a person may take a seat.
        scripts: Names of the scripts that are allowed; None: those of `env`, which is installed.
        download: Whether remote checkpoints are fetched now, and become local folders.

    Raises:
        SettingsError: A spec is unknown, their number does not fit the seats, or a checkpoint is
            not available.
    """
    specs = [spec.strip() for spec in text.split(",")]
    if len(specs) not in (1, num_players):
        raise SettingsError(
            f"lineup {text!r}: {len(specs)} policy specs for {num_players} players; give a single "
            "one for all seats, or one per seat."
        )
    if scripts is None:
        scripts = registry.get(env).policies
    refs: dict[str, Ref] = {}
    for spec in specs:
        # Each once: a remote checkpoint may change between two downloads.
        if spec not in refs:
            ref = _parse_policy(spec, text, scripts=scripts, human=human)
            refs[spec] = local_ref(ref) if download else ref
    seats = [refs[spec] for spec in specs]
    if len(seats) == 1:
        seats = seats * num_players
    return Lineup(text=text.strip(), refs=tuple(seats))


def _parse_policy(spec: str, text: str, *, scripts: Collection[str], human: bool) -> Ref:
    """Read one spec of a lineup.

    Args:
        spec: The spec.
        text: The whole lineup, for error messages.
        scripts: Names of the scripts that are allowed.
        human: Whether a person may take a seat.
    """
    where = f"lineup {text!r}"
    if spec == Role.HUMAN and not human:
        raise SettingsError(
            f"{where}: a person can take a seat only in hanabi-grpo play, not here."
        )
    roles = [Role.SERVED, Role.BASE]
    if human:
        roles.append(Role.HUMAN)
    ref = parse_ref(spec, where=where, roles=roles, scripts=scripts, adapters=True)
    if isinstance(ref, UrlRef) and human:
        raise SettingsError(
            f"{where}: {spec} can take a seat only in games that the rollout server plays, "
            "not here."
        )
    if isinstance(ref, CheckpointRef) and isinstance(ref.place, Path):
        folder = ref.place
        if not folder.is_dir():
            raise SettingsError(
                f"{where}: {folder}: no such folder; give a run's folder or its checkpoint-N."
            )
    return ref


def short_name(spec: str) -> str:
    """Return a policy's name in tables and charts: for a checkpoint its last two folders."""
    try:
        ref = parse_ref(spec, where="", roles=tuple(Role), scripts=(), adapters=True)
    except SettingsError:
        return spec
    return ref.label if isinstance(ref, CheckpointRef) else spec


ReadCheckpoints = dict[Place, tuple[Path, SavedAdapters]]
"""By the folder that was given: its checkpoint, and the adapters that were read there."""


class SeatResolver:
    """Turns policies into seats of one server.

    Versions are those of the first request for the server's identity, so the same versions play all
    games.
    """

    def __init__(
        self,
        client: RolloutClient | None,
        settings: Settings,
        *,
        checkpoints: ReadCheckpoints | None = None,
    ) -> None:
        """Bind a server.

        Args:
            client: Client of the server; None if only scripts play.
            settings: Settings whose MODEL is the base model of checkpoints that do not name one.
            checkpoints: Checkpoints that an earlier resolver has read; this one adds to them. None:
                there are none.
        """
        self._client = client
        self._settings = settings
        self._identity: dict[str, Any] | None = None
        self._checkpoints = {} if checkpoints is None else checkpoints
        """If a run continues to train, the checkpoint that was read first stays in use."""
        self._guests: dict[tuple[Path, str], str] = {}
        """Seats of uploaded adapters, by checkpoint and adapter."""
        self._compared: set[Path] = set()
        """Runs whose messages were compared."""

    def seats(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """Return the policy of every seat as requests name it, e.g. ("player_0@7", "iggi").

        Adapters of checkpoints are uploaded as needed, each once.

        Raises:
            SettingsError: A checkpoint cannot be read, lacks the adapter, or is of another base
                model.
            ServerError: The server holds no such adapter, or refuses a checkpoint.
        """
        seats = [self.seat(ref, player) for player, ref in enumerate(refs)]
        return tuple(seats)

    def seat(self, ref: Ref, player: int) -> str:
        """Return the policy of one seat as requests name it; see `seats`."""
        match ref:
            case ScriptRef() | Role.BASE:
                return str(ref)
            case UrlRef():
                known = self._look().get("partners", {})
                if str(ref) not in known:
                    raise unknown_url(ref, known)
                return str(ref)
            case Role.SERVED:
                return self._newest(ref, player_name(player))
            case AdapterRef(adapter=adapter, version=None):
                return self._newest(ref, adapter)
            case AdapterRef():
                return self._at_version(ref)
            case CheckpointRef(place=place, adapter=adapter):
                return self._uploaded(local_folder(place), adapter, player)
        raise SettingsError(f"{ref}: not a policy that a server can play.")

    def renewed(self, ref: Ref, player: int) -> str:
        """Return the policy of one seat as `seat` does, at the server's present version."""
        self._identity = None
        self.forget_guests()
        return self.seat(ref, player)

    def forget_guests(self) -> None:
        """Upload adapters again when they are next needed.

        This is for a server that dropped them, or that was replaced by another process.
        """
        self._guests.clear()

    def digests(self) -> dict[str, str]:
        """Return digests of names whose meaning may change over time.

        Returns:
            The digest of each served adapter's weights by its name, and the URL and model of each
            partner by its spec.
        """
        if self._client is None:
            return {}
        identity = self._look()
        digests = {}
        for name, adapter in identity["adapters"].items():
            digests[name] = str(adapter["sha256"])
        return digests | identity.get("partners", {})

    def model(self) -> str:
        """Return the fingerprint of the server's base models, tokenizers and chat formats."""
        identity = self._look()
        facts = [str(identity[name]) for name in SAME_FACTS]
        for player, base in (identity.get(BASES) or {}).items():
            facts += [player, *(str(base[name]) for name in SAME_FACTS)]
        return "/".join(facts)

    def run_folders(self, refs: Sequence[Ref]) -> tuple[Path, ...]:
        """Return the local folders of the runs whose adapters have a seat, each once.

        `seats` must have resolved the checkpoints before.
        """
        folders: dict[Path, None] = {}
        for ref in refs:
            folder = None
            if isinstance(ref, AdapterRef) or ref is Role.SERVED:
                folder = find_run(self._look().get("run"))
            elif isinstance(ref, CheckpointRef) and ref.place in self._checkpoints:
                checkpoint, _ = self._checkpoints[ref.place]
                folder = run_of(checkpoint)
            if folder is not None:
                folders[folder] = None
        return tuple(folders)

    def session_run(self) -> Path | None:
        """Return the local folder of the run of the server's session; None if there is none."""
        return find_run(self._look().get("run"))

    def compare_messages(self, refs: Sequence[Ref], setup: Setup[Any]) -> None:
        """Warn if players learned this preset with other messages or rules.

        Args:
            refs: The policies in the seats; each run is warned about once.
            setup: The game to play here.
        """
        here = {}
        for name, value in setup.config.model_dump(mode="json").items():
            if not name.startswith("reward_"):
                here[f"HANABI_{name.upper()}"] = value
        here.setdefault("HANABI_INSTRUCTION", setup.config.instruction)
        for run in self.run_folders(refs):
            if run in self._compared:
                continue
            self._compared.add(run)
            recorded = recorded_settings(run)
            learned = {}
            different_here = []
            for name, value in here.items():
                if name in recorded and recorded[name] != value:
                    learned[name] = recorded[name]
                    different_here.append(str(value))
            is_same_game = recorded.get("HANABI_ENV") == setup.env
            if not learned or not is_same_game or "HANABI_PRESET" in learned:
                continue
            assignments = []
            for name, value in learned.items():
                assignments.append(f"{name}={'' if value is None else shlex.quote(str(value))}")
            exports = " ".join(assignments)
            logger.warning(
                "%s: trained with %s; here: %s. To play as in training: export %s",
                run,
                exports,
                ", ".join(different_here),
                exports,
            )

    def _newest(self, ref: Ref, adapter: str) -> str:
        """Return the seat of an adapter at the version that the server serves."""
        versions = self._look()["versions"]
        name = adapter_of(adapter, versions) if ref is Role.SERVED else adapter
        if name not in versions:
            served = [f"{other}@{version}" for other, version in versions.items()]
            raise ServerError(
                f"{ref}: the server serves no adapter for {adapter} (available: "
                f"{', '.join(served) or 'none'}). Train first, name a checkpoint, or play {BASE}."
            )
        return f"{name}@{versions[name]}"

    def _at_version(self, ref: AdapterRef) -> str:
        """Return the seat of an adapter at the version that the spec names."""
        newest = self._newest(ref, ref.adapter)
        if newest != str(ref):
            raise ServerError(
                f"{ref}: the server serves {newest} and keeps no other version. For an earlier "
                "one, give the checkpoint."
            )
        return newest

    def _uploaded(self, folder: Path, adapter: str | None, player: int) -> str:
        """Return the seat of a checkpoint's adapter, and upload the adapter if necessary.

        Args:
            folder: A checkpoint, or a run, whose newest checkpoint is used.
            adapter: Name of the adapter; None: the adapter of the seat.
            player: Number of the seat.
        """
        if folder not in self._checkpoints:
            newest = newest_checkpoint(folder)
            self._checkpoints[folder] = newest, read_adapters(newest)
        checkpoint, saved = self._checkpoints[folder]
        try:
            name = saved.choose(player_name(player), adapter)
        except SettingsError as error:
            raise SettingsError(f"{checkpoint}: {error}") from error
        if (checkpoint, name) not in self._guests:
            identity = self._look()
            if saved.facts.keys().isdisjoint(SAME_FACTS):
                base = base_of(self._settings, name)
                fingerprint = model_fingerprint(resolve_model(base))
                saved = replace(saved, facts={"model_fingerprint": fingerprint})
            check_same_base(checkpoint, saved, identity, adapter=name)
            assert self._client is not None, "`_look` refuses a missing client"
            weights, config = saved.adapters[name]
            named_base = {}
            if identity.get(BASES):
                named_base["base"] = facts_of_base(saved.facts, name).get("model_fingerprint")
            seat = self._client.upload_guest(saved.step, weights, config, **named_base)
            self._guests[checkpoint, name] = seat
        return self._guests[checkpoint, name]

    def _look(self) -> dict[str, Any]:
        """Return the server's identity as it was at the first request."""
        if self._client is None:
            raise SettingsError(
                "this lineup needs a rollout server: start one, or add --own-server."
            )
        if self._identity is None:
            self._identity = self._client.identity()
        return self._identity
