"""What a rollout server is, and whether a trainer fits it."""

import contextlib
import json
from collections.abc import Iterator

from pydantic import BaseModel

from hanabi_grpo.envs.registry import origin, setup
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.handshake import (
    PROTOCOL,
    SECRET_FIELDS,
    GameClaim,
    SessionRequest,
    prompt_hash,
)
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.types import SHARED_ADAPTER, player_names

_SAME_CODE = "install the same hanabi_grpo version on both sides"


class ServerIdentity(BaseModel):
    """What this server is; a trainer compares it before the first step."""

    protocol: int = PROTOCOL
    instance_id: str
    model: str
    model_fingerprint: str
    tokenizer_hash: str
    chat_hash: str
    dtype: str
    max_lora_rank: int
    max_players: int
    max_model_len: int
    session_timeout: float = 60.0
    """Seconds of a trainer's silence after which another may take over."""
    partners: dict[str, str] = {}
    """Models behind URLs that may take a seat: the seat's word to URL#model."""


def read_session_request(identity: ServerIdentity, body: bytes) -> SessionRequest:
    """Return the request of a body; a SettingsError says that it is none, or of another
    protocol.
    """
    try:
        return read_struct(SessionRequest, body, secret_fields=SECRET_FIELDS)
    except ValueError as error:
        theirs = None
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            theirs = json.loads(body)["protocol"]
        if isinstance(theirs, int) and theirs != identity.protocol:
            # Another protocol has other fields: that, not the first of them, is what the trainer
            # must be told.
            raise _differs("protocol", identity.protocol, theirs, _SAME_CODE) from error
        raise SettingsError(f"session request: {error}; {_SAME_CODE}.") from error


def check_fit(identity: ServerIdentity, wanted: SessionRequest) -> None:
    """Compare both sides; a SettingsError says the first difference, both values, and what to
    do.
    """
    for what, here, there, remedy in (
        ("protocol", identity.protocol, wanted.protocol, _SAME_CODE),
        (
            "base model",
            identity.model_fingerprint,
            wanted.model_fingerprint,
            "start both sides with the same MODEL",
        ),
        (
            "tokenizer",
            identity.tokenizer_hash,
            wanted.tokenizer_hash,
            "copy the tokenizer files of one side's MODEL",
        ),
        ("number format", identity.dtype, wanted.dtype, "use the same HANABI_DTYPE on both sides"),
        (
            "chat format",
            identity.chat_hash,
            wanted.chat_hash,
            "use the same MODEL and HANABI_THINKING on both sides",
        ),
    ):
        if here != there:
            raise _differs(
                what, f"{here} ({identity.model})" if what != "protocol" else here, there, remedy
            )
    if wanted.lora_rank > identity.max_lora_rank:
        raise SettingsError(
            f"LORA_RANK={wanted.lora_rank}: this server was started with "
            f"LORA_RANK={identity.max_lora_rank}. "
            f"Restart it with LORA_RANK={wanted.lora_rank} or train with at most "
            f"{identity.max_lora_rank}."
        )
    if len(wanted.adapters) > identity.max_players:
        raise _too_many_players(f"{len(wanted.adapters)} adapters", len(wanted.adapters), identity)
    expected = (SHARED_ADAPTER,), player_names(len(wanted.adapters))
    if tuple(wanted.adapters) not in expected:
        raise SettingsError(
            f"adapters {', '.join(wanted.adapters)}: allowed are {SHARED_ADAPTER} alone, or "
            "player_0 and the others "
            f"in turn order, here {', '.join(expected[1])}; set HANABI_ADAPTERS=per_player or "
            "shared."
        )
    for claim in wanted.games:
        for what, here, there, remedy in _game_differences(identity, claim, wanted.adapters):
            if here != there:
                raise _differs(what, here, there, remedy)


def _game_differences(
    identity: ServerIdentity, claim: GameClaim, adapters: list[str]
) -> Iterator[tuple[str, str, str, str]]:
    try:
        played = setup(claim.env, claim.env_config)
    except HanabiGrpoError as error:
        raise SettingsError(
            f"the server cannot play a game of this trainer: {error} Or {_SAME_CODE}."
        ) from error
    spec, source = played.spec, origin(played.env)
    if spec.num_players > identity.max_players:
        raise _too_many_players(f"games of {spec.num_players} players", spec.num_players, identity)
    if adapters != [SHARED_ADAPTER] and len(adapters) < spec.num_players:
        raise SettingsError(
            f"games of {spec.num_players} players, but {len(adapters)} adapters "
            f"({', '.join(adapters)}): give each "
            "player one (HANABI_PLAYERS), or let all share one (HANABI_ADAPTERS=shared)."
        )
    name = f"{spec.env} {spec.preset}, {spec.num_players} players"
    package, theirs = (
        f"{source.distribution} {source.version}",
        f"{claim.distribution} {claim.version}",
    )
    yield (
        f"package of the environment {spec.env}",
        package,
        theirs,
        "install the same version on both sides",
    )
    yield f"rules ({name})", spec.hash, claim.spec_hash, f"{_SAME_CODE}, with the same open_spiel"
    yield f"prompts ({name})", prompt_hash(played), claim.prompt_hash, _SAME_CODE


def _differs(what: str, here: object, there: object, remedy: str) -> SettingsError:
    return SettingsError(f"{what} differs: server {here}, trainer {there}; {remedy}.")


def _too_many_players(what: str, players: int, identity: ServerIdentity) -> SettingsError:
    return SettingsError(
        f"{what}: this server was started for {identity.max_players} players; restart it with "
        f"HANABI_PLAYERS={players}."
    )
