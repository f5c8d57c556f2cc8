"""Which deals a step plays, and groups of mixed deals.

With HANABI_GROUP=mixed, to measure what groups of one deal are worth, a group is played as many deals with one game
each, and put together again. Its games have one board, one suite and one line-up of seats, those of the deal that it
stands for; only the cards differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch.utils.data import Dataset

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import deals

_Game = TypeVar("_Game")


class DealDataset(Dataset[dict[str, Any]]):
    """Deal number n of a run, for n below the number that the run needs. Nothing is stored."""

    def __init__(self, rows: list[dict[str, Any]], num_deals: int) -> None:
        """Wrap dataset rows; `num_deals` is steps × deals per step."""
        self._rows, self._num_deals = rows, num_deals

    def __len__(self) -> int:
        """Return the number of deals of the run."""
        return self._num_deals

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return {"env", "env_config", "suite", "seed", "deal"} of one deal."""
        return deals(self._rows, number, 1)[0]


def step_deals(step: int, deals_per_step: int) -> list[int]:
    """Return the numbers of a step's deals in the run, in order."""
    return list(range(step * deals_per_step, (step + 1) * deals_per_step))


def spread_deals(
    deals: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], num_games: int
) -> list[dict[str, Any]]:
    """Return `num_games` deals in the place of each.

    A fresh deal whose seed is n above its row's first stands for the seeds n·num_games to (n + 1)·num_games − 1 above
    it, so that no two groups share one. A deal of listed seeds stands for the next ones on the list, round and round;
    over the whole list each comes up equally often, and a list that is shorter than a group repeats within it.

    Raises:
        SettingsError: A deal that no row of the dataset stands for.
    """
    found: list[dict[str, Any]] = []
    for deal in deals:
        row = _row_of(deal, rows)
        seeds, first = row["seeds"], row["first_seed"]
        place = (seeds.index(deal["seed"]) if seeds else deal["seed"] - first) * num_games
        for number in range(place, place + num_games):
            found.append({**deal, "seed": seeds[number % len(seeds)] if seeds else first + number})
    return found


def gather_groups(games: Sequence[Sequence[_Game]], num_games: int) -> list[list[_Game]]:
    """Return groups of what was played of `num_games` deals each."""
    starts = range(0, len(games), num_games)
    return [[game for played in games[start : start + num_games] for game in played] for start in starts]


def _row_of(deal: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for row in rows:
        same = all(row[name] == deal[name] for name in ("env", "env_config", "suite"))
        if same and (deal["seed"] in row["seeds"] if row["seeds"] else deal["seed"] >= row["first_seed"]):
            return row
    raise SettingsError(
        f"HANABI_GROUP=mixed: deal {deal['suite']}/{deal['seed']} is of no row of the dataset, so nobody knows "
        "which others to mix it with. Was DATASET changed while it ran? Start anew, or set HANABI_GROUP=deal."
    )
