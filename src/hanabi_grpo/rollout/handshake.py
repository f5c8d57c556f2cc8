"""What trainer and server tell each other before the first game, and how each side computes it.

Both sides run this code over their own installation: the server recomputes what a trainer claims of
its games, so two installations that would task, word or encode a game differently are told so
instead of training on the difference."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.envs.registry import origin
from hanabi_grpo.types import MAX_PLAYERS

PROTOCOL = 6
"""Of the rollout server's routes; both sides name it when a run is introduced."""
MAX_VERSION = 2**31 - 1
"""Largest policy version: versions count optimizer steps."""
STARTING = "starting"
"""`status` of the answer 503 that a server gives until its engine is up; beside it `seconds`, so
far.
"""
_NUM_PROBES = 3
_PROBE_TURNS = 8

_Text = Annotated[str, Field(min_length=1, max_length=100)]
_Version = Annotated[int, Field(ge=0, le=MAX_VERSION)]
_Versions = Annotated[dict[_Text, _Version], Field(max_length=MAX_PLAYERS)]


class GameClaim(BaseModel):
    """One game that a trainer will ask for, and what its own code makes of it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    env: _Text
    env_config: dict[_Text, Any] = Field(min_length=1, max_length=32)
    distribution: _Text
    """The installed package that the environment comes from, and its version."""
    version: _Text
    spec_hash: _Text
    prompt_hash: _Text


class SessionRequest(BaseModel):
    """What a trainer says of itself; the server refuses one that does not fit."""

    model_config = ConfigDict(extra="forbid", strict=True)
    protocol: int
    run_id: str = Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")
    trainer_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    secret: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    """Of the run folder (`runs.run_secret`): who knows it is the run's next trainer, whatever else
    is public.
    """
    adapters: list[_Text] = Field(min_length=1, max_length=MAX_PLAYERS)
    lora_rank: int = Field(ge=1, le=512)
    model_fingerprint: _Text
    tokenizer_hash: _Text
    chat_hash: _Text
    dtype: _Text
    games: list[GameClaim] = Field(min_length=1, max_length=64)
    """Never empty: a session is what uploads adapters, and an adapter without games cannot be
    checked. Playing the base model, or what is served already, needs no session."""
    version: _Version = 0
    """The first version that the trainer will push."""
    replaces: _Versions | None = None
    """Newer versions of the same run that the server may drop."""


def session_headers(run_id: str, trainer_id: str) -> dict[str, str]:
    """Return the headers that name a trainer; a path may hold what a header may not, so it is
    percent-encoded.
    """
    return {"x-run-id": quote(run_id, safe="/:@"), "x-trainer-id": trainer_id}


def read_session_headers(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return (run_id, trainer_id) of a request; None for what it does not say."""
    run_id = headers.get("x-run-id")
    return (None if run_id is None else unquote(run_id)), headers.get("x-trainer-id")


def game_claims(setups: Sequence[Setup[Any]]) -> list[dict[str, Any]]:
    """Return what this installation makes of each game, as the request carries it; equal games
    once.
    """
    claims = []
    for setup in dict.fromkeys(setups):
        source = origin(setup.env)
        package = {"distribution": source.distribution, "version": source.version}
        claims.append(
            {
                **setup.row(),
                **package,
                "spec_hash": setup.spec.hash,
                "prompt_hash": prompt_hash(setup),
            }
        )
    return claims


@functools.lru_cache(maxsize=256)
def prompt_hash(setup: Setup[Any]) -> str:
    """Return a short sha256 over what players of a game are told.

    That is every player's system message, and the messages of a few turns of fixed games: the
    actions are chosen by position among the legal ones, so a difference in the rules shows as well.
    """
    told = [
        setup.environment.system(setup.config, player) for player in range(setup.spec.num_players)
    ]
    for number in range(_NUM_PROBES):
        referee = Referee(setup.task("eval-handshake", number))
        for turn in range(_PROBE_TURNS):
            replies = {}
            for player in referee.to_act():
                told.append(referee.see(player).message())
                # The last legal action of the first game: in many games the first ones end it.
                legal = referee.see(player).legal() or ("",)
                replies[player] = legal[-1 if number == 0 else (7 * turn + number) % len(legal)]
            if not replies:
                break
            referee.step(replies)
    return _short_hash(told)


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a short sha256 over all that decides which ids a text becomes, and back.

    Vocabulary, merges, normalisation, added and special tokens count; the folder, and the
    truncation and padding that earlier calls left switched on, do not."""
    parts: list[Any] = [
        sorted(tokenizer.get_vocab().items()),
        sorted((number, str(token)) for number, token in tokenizer.added_tokens_decoder.items()),
        {name: str(value) for name, value in tokenizer.special_tokens_map.items()},
    ]
    if tokenizer.is_fast:
        pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
        parts.append(
            {key: value for key, value in pipeline.items() if key not in ("truncation", "padding")}
        )
    return _short_hash(parts)


def _short_hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
