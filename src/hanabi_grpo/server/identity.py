"""The identity of a rollout server, and the check whether a trainer matches it."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from hanabi_grpo.envs.access import NOTHING_OUTSIDE, GameAccess
from hanabi_grpo.envs.registry import origin
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.handshake import (
    PROTOCOL,
    SECRET_FIELDS,
    BaseClaim,
    GameClaim,
    SessionRequest,
    prompt_hash,
)
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.types import SHARED_ADAPTER, player_names

_SAME_CODE = "install the same hanabi_grpo version on both sides"


class BaseIdentity(BaseModel):
    """The base model of one player of a team, on the server's side."""

    model: str
    """As spelled in MODEL."""
    model_fingerprint: str
    tokenizer_hash: str
    chat_hash: str


class ServerIdentity(BaseModel):
    """The identity of this server; a trainer compares it before the first step."""

    protocol: int = PROTOCOL
    instance_id: str
    """Identifies this server process."""
    model: str
    """MODEL as given to the server; if it names several, fingerprint and digests are player_0's."""
    model_fingerprint: str
    tokenizer_hash: str
    chat_hash: str
    dtype: str
    max_lora_rank: int
    max_players: int
    max_model_len: int
    """Token budget of a conversation, including the next reply."""
    session_timeout: float = 60.0
    """Seconds of a trainer's silence after which another may take over."""
    partners: dict[str, str] = {}
    """Models behind URLs that may take a seat: seat reference to URL#model."""
    judge: str = ""
    """The judge's settings, see `settings.judge.judge_description`; "": no judge."""
    judge_model: str = ""
    """URL#model of the judge."""
    bases: dict[str, BaseIdentity] = {}
    """The base model of each player; empty if all have the same."""

    def base_of(self, player: str) -> BaseIdentity:
        """Return the base model of a player."""
        only = BaseIdentity(
            model=self.model,
            model_fingerprint=self.model_fingerprint,
            tokenizer_hash=self.tokenizer_hash,
            chat_hash=self.chat_hash,
        )
        return self.bases.get(player, only)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """A property that must be the same on both sides."""

    subject: str
    """Name of the property, e.g. "tokenizer"."""
    here: object
    """The server's value."""
    there: object
    """The trainer's value."""
    remedy: str
    """What to do if the values differ."""
    shown_here: object | None = None
    """The server's value in messages; None: the value itself."""

    def check(self) -> None:
        """Raise a SettingsError with both values and the remedy if they differ."""
        if self.here == self.there:
            return
        here = self.here if self.shown_here is None else self.shown_here
        raise SettingsError(
            f"{self.subject} differs: server {here}, trainer {self.there}; {self.remedy}."
        )


def read_session_request(identity: ServerIdentity, body: bytes) -> SessionRequest:
    """Return the session request of a body.

    Raises:
        SettingsError: It is malformed, or has a different protocol.
    """
    try:
        return read_struct(SessionRequest, body, secret_fields=SECRET_FIELDS)
    except ValueError as error:
        # A different protocol has different fields: report the protocol, not the first unknown
        # field.
        _check_protocol_of(identity, body)
        raise SettingsError(f"session request: {error}; {_SAME_CODE}.") from error


def _check_protocol_of(identity: ServerIdentity, body: bytes) -> None:
    """Raise a SettingsError if a body has a different protocol."""
    protocol = None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        protocol = json.loads(body)["protocol"]
    if isinstance(protocol, int):
        _protocol_comparison(identity, protocol).check()


def _protocol_comparison(identity: ServerIdentity, protocol: int) -> _Comparison:
    return _Comparison(
        subject="protocol", here=identity.protocol, there=protocol, remedy=_SAME_CODE
    )


def check_fit(
    identity: ServerIdentity, wanted: SessionRequest, access: GameAccess = NOTHING_OUTSIDE
) -> None:
    """Check that a trainer matches this server; building the problems of its games may take long.

    Args:
        identity: Identity of this server.
        wanted: The trainer's description of itself.
        access: The files that its games may name.

    Raises:
        SettingsError: It does not match; the message has the first difference, both values, and
            what to do.
    """
    for comparison in _comparisons(identity, wanted):
        comparison.check()
    if wanted.lora_rank > identity.max_lora_rank:
        raise SettingsError(
            f"LORA_RANK={wanted.lora_rank}: this server was started with "
            f"LORA_RANK={identity.max_lora_rank}. Restart it with LORA_RANK={wanted.lora_rank} or "
            f"train with at most {identity.max_lora_rank}."
        )
    if any(rank > wanted.lora_rank for rank in wanted.lora_ranks.values()):
        raise SettingsError(
            f"lora_ranks: {wanted.lora_ranks} with lora_rank {wanted.lora_rank}, which must be the "
            f"largest rank; {_SAME_CODE}."
        )
    num_adapters = len(wanted.adapters)
    if num_adapters > identity.max_players:
        raise _too_many_players(f"{num_adapters} adapters", num_adapters, identity)
    names = player_names(num_adapters)
    if tuple(wanted.adapters) not in ((SHARED_ADAPTER,), names):
        raise SettingsError(
            f"adapters {', '.join(wanted.adapters)}: allowed are {SHARED_ADAPTER} alone, or "
            f"player_0 and the others in turn order, here {', '.join(names)}; set "
            "HANABI_ADAPTERS=per_player or shared."
        )
    for claim in wanted.games:
        for comparison in _game_comparisons(identity, claim, wanted.adapters, access):
            comparison.check()


def _comparisons(identity: ServerIdentity, wanted: SessionRequest) -> Iterator[_Comparison]:
    """Yield the comparisons of server and trainer, the protocol first."""
    yield _protocol_comparison(identity, wanted.protocol)
    # If a team has one base model, the first player stands for all.
    players = wanted.adapters if identity.bases or wanted.bases else wanted.adapters[:1]
    for player in players:
        whose = f" of {player}" if len(players) > 1 else ""
        yield from _base_comparisons(identity.base_of(player), wanted.base_of(player), whose)
    yield _Comparison(
        subject="number format",
        here=identity.dtype,
        there=wanted.dtype,
        remedy="use the same HANABI_DTYPE on both sides",
        shown_here=f"{identity.dtype} ({identity.model})",
    )
    yield _Comparison(
        subject="judge",
        here=identity.judge or "none",
        there=wanted.judge or "none",
        remedy="use the same HANABI_JUDGE, HANABI_JUDGE_TEMPLATE, HANABI_JUDGE_WEIGHT and "
        "HANABI_JUDGE_FAILURE on both sides",
    )


def _base_comparisons(here: BaseIdentity, there: BaseClaim, whose: str) -> Iterator[_Comparison]:
    """Yield the comparisons of a base model.

    Args:
        here: The server's.
        there: The trainer's.
        whose: " of player_1", or "" if all players share it.
    """
    yield _Comparison(
        subject=f"base model{whose}",
        here=here.model_fingerprint,
        there=there.model_fingerprint,
        remedy="start both sides with the same MODEL",
        shown_here=f"{here.model_fingerprint} ({here.model})",
    )
    yield _Comparison(
        subject=f"tokenizer{whose}",
        here=here.tokenizer_hash,
        there=there.tokenizer_hash,
        remedy="copy the tokenizer files of one side's MODEL",
        shown_here=f"{here.tokenizer_hash} ({here.model})",
    )
    yield _Comparison(
        subject=f"chat format{whose}",
        here=here.chat_hash,
        there=there.chat_hash,
        remedy="use the same MODEL and HANABI_THINKING on both sides",
        shown_here=f"{here.chat_hash} ({here.model})",
    )


def _game_comparisons(
    identity: ServerIdentity, claim: GameClaim, adapters: list[str], access: GameAccess
) -> Iterator[_Comparison]:
    """Yield the comparisons of one game of the trainer.

    Raises:
        SettingsError: The server cannot play the game, or not with this many players or adapters.
    """
    try:
        played = access.setup(claim.env, claim.env_config)
    except HanabiGrpoError as error:
        raise SettingsError(
            f"the server cannot play a game of this trainer: {error} Or {_SAME_CODE}."
        ) from error
    spec = played.spec
    if spec.num_players > identity.max_players:
        raise _too_many_players(f"games of {spec.num_players} players", spec.num_players, identity)
    if adapters != [SHARED_ADAPTER] and len(adapters) < spec.num_players:
        raise SettingsError(
            f"games of {spec.num_players} players, but {len(adapters)} adapters "
            f"({', '.join(adapters)}): give each player one (HANABI_PLAYERS), or let all players "
            "share one (HANABI_ADAPTERS=shared)."
        )
    name = f"{spec.env} {spec.preset}, {spec.num_players} players"
    package = origin(played.env)
    yield _Comparison(
        subject=f"package of the environment {spec.env}",
        here=f"{package.distribution} {package.version}",
        there=f"{claim.distribution} {claim.version}",
        remedy="install the same version on both sides",
    )
    yield _Comparison(
        subject=f"rules ({name})",
        here=spec.hash,
        there=claim.spec_hash,
        remedy=f"{_SAME_CODE}, with the same open_spiel",
    )
    yield _Comparison(
        subject=f"prompts ({name})",
        here=prompt_hash(played),
        there=claim.prompt_hash,
        remedy=_SAME_CODE,
    )


def _too_many_players(subject: str, players: int, identity: ServerIdentity) -> SettingsError:
    return SettingsError(
        f"{subject}: this server was started for {identity.max_players} players; restart it with "
        f"HANABI_PLAYERS={players}."
    )
