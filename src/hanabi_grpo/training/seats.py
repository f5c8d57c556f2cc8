"""Which of the run's players holds which seat at a version, and which of them are trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats, seated

NOBODY = ""
"""Stands for a seat whose player does not learn in the step; no episode records this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatAssignment:
    """The run's own players in their seats at one version of the adapters.

    With two players, version 7 and player_1 at rest: players ("player_0", "player_1"), seats
    ("player_0@7", "player_1@7"), trained ("player_0@7", "").
    """

    players: tuple[str, ...]
    """Per seat, the player; HANABI_SWAP_EVERY rotates them."""
    seats: tuple[str, ...]
    """Per seat, the adapter and its version, as episodes record it."""
    trained: tuple[str, ...]
    """`seats`, with `NOBODY` where the player does not learn in this step."""

    @classmethod
    def at_version(
        cls,
        settings: Settings,
        adapter_names: Sequence[str],
        version: int,
        active_players: Sequence[str],
    ) -> "SeatAssignment":
        """Return the seat assignment at a version.

        Args:
            settings: The run's settings, for the number of players and HANABI_SWAP_EVERY.
            adapter_names: The run's adapters, one per player or a shared one.
            version: Version of the adapters, which is the number of finished steps.
            active_players: The players that learn in this step.
        """
        players = seated(settings.players, version, settings.swap_every)
        seats = own_seats(settings.players, adapter_names, version, settings.swap_every)
        trained = tuple(
            seat if player in active_players else NOBODY
            for player, seat in zip(players, seats, strict=True)
        )
        return cls(players=players, seats=seats, trained=trained)
