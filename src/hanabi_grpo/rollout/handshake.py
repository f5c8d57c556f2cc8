"""Handshake of trainer and server before the first game, and the digests that both compute.

Both sides run this code on their own installation: the server recomputes the digests that a trainer
claims for its games, so that two installations that would start, phrase or encode a game
differently raise an error instead of silently training on the difference.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote, unquote

from msgspec import Meta, Struct

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.envs.registry import origin
from hanabi_grpo.texts import is_visible, visible_line
from hanabi_grpo.types import MAX_PLAYERS

PROTOCOL = 8
"""Version of the rollout server's routes; both sides send it when a session begins."""
MAX_VERSION = 2**31 - 1
"""Largest policy version: versions count optimizer steps."""
STARTING = "starting"
"""`status` in a server's 503 responses until its engine has started.

The field `seconds` has the time since the start.
"""
_MAX_TEXT = 100
_MAX_RUN_ID = 4096
_MAX_RANK = 512
_MAX_JUDGE = 200
MAX_CLAIMS = 64
"""Largest number of different games of one session."""
_MAX_CONFIG_FIELDS = 32
_NUM_PROBES = 3
"""Number of games whose messages are compared."""
_PROBE_TURNS = 8
"""Number of turns in each of these games."""

_STRIDE = 7
"""Number of legal actions by which the choice advances from turn to turn."""

_Text = Annotated[str, Meta(min_length=1, max_length=_MAX_TEXT)]
_Version = Annotated[int, Meta(ge=0, le=MAX_VERSION)]
_Versions = Annotated[dict[_Text, _Version], Meta(max_length=MAX_PLAYERS)]
_Rank = Annotated[int, Meta(ge=1, le=_MAX_RANK)]
_Ranks = Annotated[dict[_Text, _Rank], Meta(max_length=MAX_PLAYERS)]
_Config = Annotated[dict[_Text, Any], Meta(min_length=1, max_length=_MAX_CONFIG_FIELDS)]


class GameClaim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One game that a trainer will request, with the digests that its own code computes."""

    env: _Text
    """Name of the environment."""
    env_config: _Config
    """Fields of its Config."""
    distribution: _Text
    """The installed package that the environment comes from."""
    version: _Text
    """Version of that package."""
    spec_hash: _Text
    """See `EnvSpec.hash`."""
    prompt_hash: _Text
    """See `prompt_hash`."""


class BaseClaim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base model of one player, on the trainer's side."""

    model_fingerprint: _Text
    tokenizer_hash: _Text
    """See `tokenizer_hash`."""
    chat_hash: _Text
    """See `ChatFormat.hash`."""


class SessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trainer's description of itself; the server rejects a trainer that does not match."""

    protocol: int
    run_id: Annotated[
        str, Meta(min_length=1, max_length=_MAX_RUN_ID, pattern=r"^[^\x00-\x1f\x7f]+\Z")
    ]
    """Path of the run folder."""
    trainer_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """Identifies the trainer's process."""
    secret: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """Secret of the run folder (`runs.run_secret`).

    A trainer that knows the secret may take over the run; everything else may be public.
    """
    adapters: Annotated[list[_Text], Meta(min_length=1, max_length=MAX_PLAYERS)]
    lora_rank: _Rank
    """Rank of every adapter, or the largest rank."""
    model_fingerprint: _Text
    tokenizer_hash: _Text
    """See `tokenizer_hash`."""
    chat_hash: _Text
    """See `ChatFormat.hash`."""
    dtype: _Text
    judge: Annotated[str, Meta(max_length=_MAX_JUDGE)] = ""
    """See `settings.judge.judge_description`; "": no judge."""
    games: Annotated[list[GameClaim], Meta(min_length=1, max_length=MAX_CLAIMS)]
    """The games of the run, at least one: a session uploads adapters, and an adapter without games
    cannot be checked. Playing the base model, or adapters that are already served, does not need a
    session.
    """
    lora_ranks: _Ranks = {}
    """Rank of each adapter whose rank differs from `lora_rank`."""
    bases: Annotated[dict[_Text, BaseClaim], Meta(max_length=MAX_PLAYERS)] = {}
    """The base model of each player if there are several; the fields above are player_0's."""
    version: _Version = 0
    """The first version that the trainer will push."""
    replaces: _Versions | None = None
    """Newer versions of the same run that the server may drop."""

    def __post_init__(self) -> None:
        """Reject a name with characters that control a terminal or are invisible."""
        if not is_visible(self.run_id):
            raise ValueError(
                f"run_id {visible_line(self.run_id)!r} contains a control character, or one that "
                "changes the writing direction or has no width; rename the run folder"
            )

    def rank_of(self, adapter: str) -> int:
        """Return the LoRA rank of one of the adapters."""
        return self.lora_ranks.get(adapter, self.lora_rank)

    def base_of(self, player: str) -> BaseClaim:
        """Return the base model of a player."""
        only = BaseClaim(
            model_fingerprint=self.model_fingerprint,
            tokenizer_hash=self.tokenizer_hash,
            chat_hash=self.chat_hash,
        )
        return self.bases.get(player, only)

    def __repr__(self) -> str:
        """Name the trainer without the secret."""
        return f"SessionRequest(run_id={self.run_id!r}, trainer_id={self.trainer_id!r})"


SECRET_FIELDS = frozenset({"secret"})
"""Fields of a `SessionRequest` whose values no error may show."""


def session_headers(run_id: str, trainer_id: str) -> dict[str, str]:
    """Return the headers that identify a trainer.

    The path is percent-encoded, because it may contain characters that headers must not.
    """
    return {"x-run-id": quote(run_id, safe="/:@"), "x-trainer-id": trainer_id}


def read_session_headers(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return (run_id, trainer_id) of a request; None for a missing header."""
    run_id = headers.get("x-run-id")
    if run_id is not None:
        run_id = unquote(run_id)
    return run_id, headers.get("x-trainer-id")


def game_claims(setups: Sequence[Setup[Any]]) -> list[dict[str, Any]]:
    """Return this installation's digests of each game, as a `GameClaim` in JSON.

    Equal games are listed once.
    """
    claims = []
    for setup in dict.fromkeys(setups):
        source = origin(setup.env)
        claims.append(
            {
                **setup.row(),
                "distribution": source.distribution,
                "version": source.version,
                "spec_hash": setup.spec.hash,
                "prompt_hash": prompt_hash(setup),
            }
        )
    return claims


@functools.lru_cache(maxsize=256)
def prompt_hash(setup: Setup[Any]) -> str:
    """Return a short sha256 over the messages that players of a game see.

    These are every player's system message, and the messages of a few turns of fixed games. Actions
    are chosen by their position among the legal ones, so a difference in the rules changes the hash
    as well.
    """
    texts = []
    for player in range(setup.spec.num_players):
        texts.append(setup.environment.system_message(setup.config, player))
    for number in range(_NUM_PROBES):
        referee = Referee(setup.task("eval-handshake", number), is_rehearsal=True)
        for turn in range(_PROBE_TURNS):
            replies = {}
            for player in referee.to_act():
                observation = referee.see(player)
                texts.append(observation.message())
                legal = observation.legal() or ("",)
                # The last legal action of the first game: in many games the first ones end it.
                choice = -1
                if number > 0:
                    choice = (_STRIDE * turn + number) % len(legal)
                replies[player] = legal[choice]
            if not replies:
                break
            referee.step(replies)
    return _short_hash(texts)


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a short sha256 over everything that affects how text is encoded and decoded.

    It covers vocabulary, merges, normalization, and added and special tokens; not the folder, nor
    truncation and padding that earlier calls left enabled.
    """
    added = []
    for number, token in tokenizer.added_tokens_decoder.items():
        added.append((number, str(token)))
    special = {}
    for name, token in tokenizer.special_tokens_map.items():
        special[name] = str(token)
    vocabulary = sorted(tokenizer.get_vocab().items())
    parts: list[Any] = [vocabulary, sorted(added), special]
    if tokenizer.is_fast:
        pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
        for name in ("truncation", "padding"):
            pipeline.pop(name, None)
        parts.append(pipeline)
    return _short_hash(parts)


def _short_hash(parts: Any) -> str:
    content = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
