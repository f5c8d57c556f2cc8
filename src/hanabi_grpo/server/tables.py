"""From the words of a request to who plays: adapters to hold, engine handles, policies."""

from collections.abc import Mapping, Sequence
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import VersionError
from hanabi_grpo.rollout.players import Player, make_script
from hanabi_grpo.rollout.tasks import RequestedTask
from hanabi_grpo.server.seats import ServedPolicy
from hanabi_grpo.settings.refs import BASE, is_scripted, seat_adapter
from hanabi_grpo.types import adapter_of, player_name, player_names


class Table:
    """Who sits at one task's games: scripts, and the served model in all other seats."""

    def __init__(self, setup: Setup[Any], seats: Sequence[str], served: ServedPolicy) -> None:
        """Seat everybody.

        Args:
            setup: What is played.
            seats: One word per seat, see `refs`.
            served: Plays every seat that no script plays.
        """
        self.seats = tuple(seats)
        self.players: list[Player] = [make_script(setup, seat) if is_scripted(seat) else served for seat in self.seats]


def wanted_adapters(tasks: Sequence[RequestedTask]) -> dict[str, int] | None:
    """Return every adapter that a request needs and its version; None: whatever is served now.

    Raises:
        VersionError: One adapter in two versions, or named by some tasks while others take what is served.
    """
    named = [seat_adapter(seat) for seats in dict.fromkeys(task.seats or () for task in tasks) for seat in seats]
    held = [one for one in dict.fromkeys(named) if one is not None]
    if any(task.seats is None for task in tasks):
        if held:
            raise VersionError("seats: some tasks name adapters and others say nothing; name them for every task.")
        return None
    wanted: dict[str, int] = {}
    for name, version in held:
        if wanted.setdefault(name, version) != version:
            raise VersionError(f"{name} is asked for as @{wanted[name]} and @{version}; one request, one version.")
    return wanted


def served_seats(num_players: int, leased: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the seats of a task that names none.

    Args:
        num_players: Of its board.
        leased: Adapter name to what is served of it.
    """
    held = [leased.get(adapter_of(player, leased)) for player in player_names(num_players)]
    return tuple(one.name if one else BASE for one in held)


def loras_of(seats: Sequence[str], leased: Mapping[str, Any]) -> dict[str, tuple[Any, int]]:
    """Return per player name the engine's handle and the version of the adapter in its seat; others are left out."""
    loras = {}
    for index, seat in enumerate(seats):
        named = seat_adapter(seat)
        if named is not None:
            held = leased[named[0]]
            loras[player_name(index)] = (held.lora, held.version)
    return loras
