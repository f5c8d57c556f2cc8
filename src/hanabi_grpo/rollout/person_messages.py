"""Messages of the web page on which a person plays, see `server.routes_person`.

As in `rollout.messages`, an unknown field is rejected. A game's token is in the body, never in a
URL, so that it does not appear in logs.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from hanabi_grpo.rollout.messages import MAX_TEMPERATURE
from hanabi_grpo.rollout.seeds import SEED_LIMIT
from hanabi_grpo.types import MAX_PLAYERS

SUITE = "human"
"""Split of the tasks that people play."""
MAX_MOVE = 8192
"""Characters of a move; an answer in free text may be long."""
_MAX_SPEC = 80
_MAX_TOKEN = 100
_MAX_HASH = 200

_Token = Annotated[str, Meta(min_length=1, max_length=_MAX_TOKEN)]
_ConfigName = Annotated[str, Meta(max_length=100)]
_Config = Annotated[dict[_ConfigName, str | int | float | bool | None], Meta(max_length=32)]
_Spec = Annotated[str, Meta(max_length=_MAX_SPEC)]


class PersonStatus(StrEnum):
    """The state of a game."""

    WAITING = "waiting"
    """Other players have to act."""
    YOUR_TURN = "your_turn"
    OVER = "over"
    FAILED = "failed"
    """It ended with an error, or because the person stopped playing."""

    @property
    def is_end(self) -> bool:
        """True when no move can follow."""
        return self in (PersonStatus.OVER, PersonStatus.FAILED)


class NewGameRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A game that a person wants to play."""

    env: Annotated[str, Meta(max_length=64)]
    """Name of the environment, see `envs.registry`."""
    env_config: _Config
    """Fields of the environment's Config."""
    rules: Annotated[str, Meta(max_length=_MAX_HASH)] | None = None
    """Hash of the rules of a game that the server was started with, see `EnvSpec.hash`: that game
    is played, with the instruction that `env_config` does not disclose. None: the game is exactly
    what the other fields say.
    """
    seats: Annotated[tuple[_Spec, ...], Meta(min_length=1, max_length=MAX_PLAYERS)]
    """The player in each seat: human once; otherwise a script, served, base or an adapter."""
    seed: Annotated[int, Meta(ge=0, le=SEED_LIMIT - 1)] | None = None
    """Number of the task; None: a random one."""
    temperature: Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)] | None = None
    """Sampling temperature of models; None: the server's TEMPERATURE."""


class StateRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for the state of a game."""

    token: _Token
    after: int | None = None
    """Number of the client's current state: the answer waits a while for a newer one."""
    watching: bool = False
    """Whether a program asks for the person, which does not count as activity of the person."""


class MoveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's move."""

    token: _Token
    number: int
    """Number of the state that the person saw."""
    move: Annotated[str, Meta(max_length=MAX_MOVE)]
    """An action in words, or a number from the menu."""


class TokenRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifies a game, to leave it, to get its record, or to play another one like it."""

    token: _Token
