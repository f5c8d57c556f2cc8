"""Groups whose games are of different deals (HANABI_GROUP=mixed), to measure what groups of one deal are worth.

A group is played as many deals with one game each, and put together again. Its games have one board, one suite and one
line-up of seats, those of the deal that it stands for; only the cards differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hanabi_grpo.errors import SettingsError

_Game = TypeVar("_Game")


def spread_deals(
    deals: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], num_games: int
) -> list[dict[str, Any]]:
    """Return `num_games` deals in the place of each.

    A fresh deal whose seed is n above its row's first stands for the seeds n·num_games to (n + 1)·num_games − 1 above
    it, so that no two groups share one. A deal of listed seeds stands for the next ones on the list, round and round;
    over the whole list each comes up equally often, and a list that is shorter than a group repeats within it.

    Args:
        deals: Each {"env_config": {...}, "suite": str, "seed": int, ...}; what else they hold is kept.
        rows: Of the dataset, from `datasets.load_rows`.
        num_games: Size of a group.

    Raises:
        SettingsError: A deal that no row stands for.
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
    return [
        [game for played in games[start : start + num_games] for game in played]
        for start in range(0, len(games), num_games)
    ]


def _row_of(deal: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for row in rows:
        same = (row["env_config"], row["suite"]) == (deal["env_config"], deal["suite"])
        if same and (deal["seed"] in row["seeds"] if row["seeds"] else deal["seed"] >= row["first_seed"]):
            return row
    raise SettingsError(
        f"HANABI_GROUP=mixed: deal {deal['suite']}/{deal['seed']} is of no row of the dataset, so nobody knows "
        "which others to mix it with. Was DATASET changed while it ran? Start anew, or set HANABI_GROUP=deal."
    )
