"""From the words of a request to who plays: adapters to hold, and a player for each seat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import VersionError
from hanabi_grpo.rollout.loop import Player, make_script
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.server.adapter_loader import HeldAdapter
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.seats import Model, ServedPlayer
from hanabi_grpo.settings.refs import BASE, is_scripted, seat_adapter
from hanabi_grpo.types import adapter_of, player_names


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Who sits at one task's games."""

    task: RequestedTask
    seats: tuple[str, ...]
    """One word per seat, see `refs`."""
    players: list[Player]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of one request; a script or adapter that sits at several of them is made once."""

    model: Model
    sampling: SamplingConfig
    leased: Mapping[str, HeldAdapter]
    """Adapter name to what is held of it."""
    made: dict[tuple[Setup[Any], str], Player] = field(default_factory=dict)

    def seat(self, task: RequestedTask) -> Table:
        """Seat who a task names, else the served adapters."""
        setup, seats = task.task.setup, task.seats
        if seats is None:
            names = [adapter_of(player, self.leased) for player in player_names(setup.spec.num_players)]
            seats = tuple(self.leased[name].name if name in self.leased else BASE for name in names)
        for seat in seats:
            if (setup, seat) not in self.made:
                self.made[setup, seat] = make_script(setup, seat) if is_scripted(seat) else self.served(seat)
        return Table(task=task, seats=seats, players=[self.made[setup, seat] for seat in seats])

    def served(self, seat: str) -> ServedPlayer:
        """Return the player that samples in a seat."""
        named = seat_adapter(seat)
        held = self.leased[named[0]] if named else None
        lora, version = (held.lora, held.version) if held else (None, None)
        return ServedPlayer(model=self.model, sampling=self.sampling, lora=lora, version=version)
