"""Which teams play: every ordered pair of entries, and for adapters per player the same adapters in other seats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.entries import Entry, cell_line_up, swap_line_up, swap_orders
from hanabi_grpo.evaluation.evaluate import line_up_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.lineups import LineUp


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """One team that plays every deal."""

    name: str
    """Of its file: "<row>-<column>", or "swap-<entry>-<whose adapter in seat 0>-<in seat 1>…"."""
    label: str
    line_up: LineUp
    key: Mapping[str, Any]
    """Everything that its games depend on; a cell of another key is another piece of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSwap:
    """One entry's adapters in other seats."""

    entry: int
    orders: tuple[tuple[int, ...], ...]
    """Whose adapter sits in each seat; the straight team is the entry's cell on the diagonal."""

    def name(self, order: Sequence[int]) -> str:
        """Return the name of a team's cell."""
        return f"swap-{self.entry}-" + "-".join(map(str, order))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole cross-play."""

    entries: tuple[Entry, ...]
    config: EnvConfig
    num_deals: int
    suite: str
    temperature: float | None
    """Of sampling; None: only scripts play."""
    seats: tuple[tuple[str, ...], ...]
    """Who an entry is, per entry and seat; see `refs`."""
    cells: tuple[PlannedCell, ...]
    """The pairs row by row, then the swapped teams."""
    swaps: tuple[PlannedSwap, ...]
    no_swap: Mapping[str, str] = field(default_factory=dict)
    """Label to reason, for entries that are models and have no seats to swap."""

    @property
    def num_pairs(self) -> int:
        """N x N."""
        return len(self.entries) ** 2


def make_plan(
    entries: Sequence[Entry], config: EnvConfig, num_deals: int, *, suite: str, served: Served | None
) -> Plan:
    """Look up who everybody is, and list the teams.

    Args:
        entries: At least two.
        config: The game.
        num_deals: Deals 0 to `num_deals - 1` are played by every team.
        suite: Which stream of held-out deals.
        served: Needed unless every entry is a script.

    Raises:
        SettingsError: Two entries are the same players, or a checkpoint cannot be used.
        ServerError: The server lacks an adapter.
    """
    players = config.players
    keys = [_key(cell_line_up(entry, entry, players), config, num_deals, suite, served) for entry in entries]
    seats = tuple(tuple(key["seats"][0]) for key in keys)
    for number, one in enumerate(seats):
        if one in seats[:number]:
            raise SettingsError(
                f"{entries[seats.index(one)].label} and {entries[number].label} are the same players "
                f"({', '.join(dict.fromkeys(one))}); give each once."
            )
    swaps, no_swap = [], {}
    for number, entry in enumerate(entries):
        if len(set(seats[number])) > 1:
            swaps.append(PlannedSwap(entry=number, orders=tuple(swap_orders(players))))
        elif entry.fills_seats:
            no_swap[entry.label] = "one adapter fills every seat, so that there is nothing to swap"

    def planned(name: str, label: str, line_up: LineUp) -> PlannedCell:
        key = _key(line_up, config, num_deals, suite, served)
        return PlannedCell(name=name, label=label, line_up=line_up, key=key)

    pairs = [
        planned(
            f"{i}-{j}", row.label if i == j else f"{row.label} × {column.label}", cell_line_up(row, column, players)
        )
        for i, row in enumerate(entries)
        for j, column in enumerate(entries)
    ]
    swapped = [
        planned(
            swap.name(order),
            f"{entries[swap.entry].label}, seats of players {', '.join(map(str, order))}",
            swap_line_up(entries[swap.entry], order),
        )
        for swap in swaps
        for order in swap.orders
    ]
    cells = (*pairs, *swapped)
    sampled = any(cell.line_up.needs_server for cell in cells)
    return Plan(
        entries=tuple(entries),
        config=config,
        num_deals=num_deals,
        suite=suite,
        temperature=served.temperature if served and sampled else None,
        seats=seats,
        cells=cells,
        swaps=tuple(swaps),
        no_swap=no_swap,
    )


def _key(line_up: LineUp, config: EnvConfig, num_deals: int, suite: str, served: Served | None) -> Mapping[str, Any]:
    key = line_up_key(line_up, config, suite=suite, served=served, rotate=False)
    # The seats say who plays; a checkpoint's folder may have been moved.
    return {**{name: value for name, value in key.items() if name != "line_up"}, "deals": num_deals}
