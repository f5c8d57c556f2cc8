"""Messages of the page on which a person plays, see `server.routes_person`.

As in `rollout.messages` an unknown field is refused. A game's token stands in the body, never in an
address, so that no log holds it.
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

_Token = Annotated[str, Meta(min_length=1, max_length=_MAX_TOKEN)]
_ConfigName = Annotated[str, Meta(max_length=100)]
_Config = Annotated[dict[_ConfigName, str | int | float | bool | None], Meta(max_length=32)]
_Spec = Annotated[str, Meta(max_length=_MAX_SPEC)]


class PersonStatus(StrEnum):
    """How far a game has come."""

    WAITING = "waiting"
    """Others are to act."""
    YOUR_TURN = "your_turn"
    OVER = "over"
    FAILED = "failed"
    """It was ended by an error, or because nobody played on."""

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
    seats: Annotated[tuple[_Spec, ...], Meta(min_length=1, max_length=MAX_PLAYERS)]
    """Who sits in each seat: human once, and else a script, served, base or an adapter."""
    seed: Annotated[int, Meta(ge=0, le=SEED_LIMIT - 1)] | None = None
    """Number of the task; None: a random one."""
    temperature: Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)] | None = None
    """Of models; None: the server's TEMPERATURE."""


class StateRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for the state of a game."""

    token: _Token
    after: int | None = None
    """Number of the state that the client has: the answer waits a while for a newer one."""
    watching: bool = False
    """Whether a program asks beside the person, which is no sign of life of the person."""


class MoveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's move."""

    token: _Token
    number: int
    """Number of the state that the person has seen."""
    move: Annotated[str, Meta(max_length=MAX_MOVE)]
    """Words of the game, or a number of the menu."""


class TokenRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names a game, to leave it or to get its record."""

    token: _Token
