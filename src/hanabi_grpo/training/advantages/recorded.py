"""Advantages of recorded games, turn by turn, as pages and the terminal show them."""

from collections.abc import Sequence
from typing import Protocol

from hanabi_grpo.training.advantages.estimators import Estimator
from hanabi_grpo.types import Episode


class Recorded(Protocol):
    """A game of a file."""

    @property
    def episode(self) -> Episode:
        """The game."""
        ...

    @property
    def source(self) -> str:
        """Name of the file."""
        ...


def turn_advantages(recordings: Sequence[Recorded], estimate: Estimator) -> list[tuple[float, ...] | None]:
    """Return per game the advantage of each turn, None for a game that is alone with its deal.

    Games of one file and one deal are a group, as they were in training. For an estimator that compares over the step,
    games of one file and one board are compared, per player those in which the same policy had its seat.
    """
    groups: dict[tuple[str, str, str, int], list[int]] = {}
    for place, recording in enumerate(recordings):
        episode = recording.episode
        deal = (episode.suite, episode.seed) if estimate.pool == "group" else ("", 0)
        groups.setdefault((recording.source, episode.spec_hash, *deal), []).append(place)
    found: list[tuple[float, ...] | None] = [None] * len(recordings)
    for places in groups.values():
        if len(places) < 2:
            continue
        values: dict[tuple[int, int], list[float]] = {}
        for player in range(recordings[places[0]].episode.num_players):
            seats: dict[str, list[int]] = {}
            for place in places:
                named = recordings[place].episode.seats
                seats.setdefault(named[player] if named else "", []).append(place)
            for same in seats.values():
                advantages = estimate([recordings[place].episode for place in same], player)
                values |= {(place, player): game for place, game in zip(same, advantages, strict=True)}
        for place in places:
            turns = recordings[place].episode.turns
            own = {player: iter(values[place, player]) for player in {turn.player for turn in turns}}
            found[place] = tuple(next(own[turn.player]) for turn in turns)
    return found
