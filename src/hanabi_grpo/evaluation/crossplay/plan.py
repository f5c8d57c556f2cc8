"""Which line-ups play: every ordered pair of entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.client.lineups import LineUp
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.entries import Entry, cell_line_up
from hanabi_grpo.evaluation.evaluate import line_up_key
from hanabi_grpo.evaluation.matches import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """One line-up that plays every deal."""

    name: str
    """Of its file: "<row>-<column>"."""
    label: str
    line_up: LineUp
    key: Mapping[str, Any]
    """Everything that its games depend on; a cell of another key is another piece of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole cross-play."""

    entries: tuple[Entry, ...]
    setup: Setup[Any]
    num_deals: int
    suite: str
    temperature: float | None
    """Of sampling; None: only scripts play."""
    seats: tuple[tuple[str, ...], ...]
    """Who an entry is, per entry and seat; see `refs`."""
    cells: tuple[PlannedCell, ...]
    """N x N, row by row."""

    @property
    def is_team(self) -> bool:
        """Whether all players of a game earn the same; if not, a cell changes seats and has the row's return."""
        return self.setup.spec.payoff == "team"


def make_plan(
    entries: Sequence[Entry], setup: Setup[Any], num_deals: int, *, suite: str, served: Served | None
) -> Plan:
    """Look up who everybody is, and list the cells.

    Args:
        entries: At least two.
        setup: The game.
        num_deals: Deals 0 to `num_deals - 1` are played in every cell.
        suite: Which stream of held-out deals.
        served: Needed unless every entry is a script.

    Raises:
        SettingsError: Two entries are the same players, or a checkpoint cannot be used.
        ServerError: The server lacks an adapter.
    """
    rotate = setup.spec.payoff != "team"
    cells = []
    for i, row in enumerate(entries):
        for j, column in enumerate(entries):
            line_up = cell_line_up(row, column, setup.spec.num_players)
            key = line_up_key(line_up, setup, suite=suite, served=served, rotate=rotate) | {"deals": num_deals}
            # The seats say who plays; a checkpoint's folder may have been moved.
            key.pop("line_up")
            label = row.label if i == j else f"{row.label} × {column.label}"
            cells.append(PlannedCell(name=f"{i}-{j}", label=label, line_up=line_up, key=key))
    seats = tuple(tuple(cell.key["seats"][0]) for cell in cells[:: len(entries) + 1])
    for number, one in enumerate(seats):
        if one in seats[:number]:
            raise SettingsError(
                f"{entries[seats.index(one)].label} and {entries[number].label} are the same players "
                f"({', '.join(dict.fromkeys(one))}); give each once."
            )
    sampled = any(cell.line_up.needs_server for cell in cells)
    return Plan(
        entries=tuple(entries),
        setup=setup,
        num_deals=num_deals,
        suite=suite,
        temperature=served.temperature if served and sampled else None,
        seats=seats,
        cells=tuple(cells),
    )
