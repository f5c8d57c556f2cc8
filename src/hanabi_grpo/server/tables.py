"""From the words of a request to who plays: adapters to hold, engine handles, policies."""

from collections.abc import Mapping, Sequence
from typing import Any

from hanabi_grpo.envs.hanabi.policies import Policy, make_policy
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.errors import VersionError, shown
from hanabi_grpo.rollout.deal_rows import Deal
from hanabi_grpo.server.seats import ServedPolicy
from hanabi_grpo.settings.refs import BASE, is_scripted, seat_adapter
from hanabi_grpo.types import adapter_of, player_name, player_names


class Table:
    """Who sits at one deal's games: scripts, and the served model in all other seats."""

    def __init__(self, seats: Sequence[str], served: ServedPolicy) -> None:
        """Seat everybody.

        Args:
            seats: One word per seat, see `seating`.
            served: Plays every seat that no script plays.
        """
        self.seats = tuple(seats)
        self._served = served
        style = ObservationStyle(served.config.observation)
        self.policies: list[Policy] = [
            make_policy(seat, style=style) if is_scripted(seat) else served for seat in self.seats
        ]

    def systems(self) -> list[str]:
        """Return each player's system message; "" for a script, which is told nothing."""
        return ["" if is_scripted(seat) else self._served.system(player) for player, seat in enumerate(self.seats)]


def wanted_adapters(deals: Sequence[Deal], adapters: Mapping[str, str | None] | None) -> dict[str, int] | None:
    """Return every adapter that a request needs and its version; None: whatever is served now.

    Args:
        deals: Those with seats of their own say what they need.
        adapters: What the others need, per player name "adapter@version" or None for the base model.

    Raises:
        VersionError: Not written as adapter@version, or one adapter in two versions.
    """
    own = [seat for deal in deals for seat in deal.seats or ()]
    if adapters is None and any(deal.seats is None for deal in deals):
        if any(seat_adapter(seat) for seat in own):
            raise VersionError("seats: some deals name adapters and others say nothing; name them for every deal.")
        return None
    wanted: dict[str, int] = {}
    for seat in dict.fromkeys([*(name for name in (adapters or {}).values() if name is not None), *own]):
        if seat == BASE or is_scripted(seat):
            continue
        held = seat_adapter(seat)
        if held is None:
            raise VersionError(f"adapters: {shown(seat)}: write it as adapter@version, e.g. player_0@7.")
        if wanted.setdefault(*held) != held[1]:
            raise VersionError(
                f"{held[0]} is asked for as @{wanted[held[0]]} and @{held[1]}; one request, one version."
            )
    return wanted


def default_seats(
    num_players: int, adapters: Mapping[str, str | None] | None, leased: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the seats of a deal that names none.

    Args:
        num_players: Of its board.
        adapters: See `wanted_adapters`.
        leased: Adapter name to what is served of it.

    Raises:
        VersionError: `adapters` says nothing of a player.
    """
    seats = []
    for player in player_names(num_players):
        if adapters is None:
            held = leased.get(adapter_of(player, leased))
            seats.append(held.name if held else BASE)
        elif player not in adapters:
            raise VersionError(f"adapters: nothing said of {player}; name adapter@version or null for the base model.")
        else:
            seats.append(adapters[player] or BASE)
    return tuple(seats)


def loras_of(seats: Sequence[str], leased: Mapping[str, Any]) -> dict[str, tuple[Any, int]]:
    """Return per player name the engine's handle and the version of the adapter in its seat; others are left out."""
    loras = {}
    for index, seat in enumerate(seats):
        named = seat_adapter(seat)
        if named is not None:
            held = leased[named[0]]
            loras[player_name(index)] = (held.lora, held.version)
    return loras
