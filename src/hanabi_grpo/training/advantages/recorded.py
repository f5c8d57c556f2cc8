"""Advantages of recorded games, turn by turn, as pages and the terminal show them."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.training.advantages.estimator import Estimator
from hanabi_grpo.types import Episode


def turn_advantages(recordings: Sequence[Recording], estimate: Estimator) -> list[tuple[float, ...] | None]:
    """Return per game the advantage of each turn, None for a game that is alone with its deal.

    Games of one file and one deal are a group, as they were in training. For an estimator that compares over the step,
    games of one file and one board are compared, per player those in which the same policy had its seat.
    """
    groups: dict[tuple[str, str, str, int], list[int]] = {}
    for place, recording in enumerate(recordings):
        episode = recording.episode
        deal = (episode.suite, episode.seed) if estimate.pool == "group" else ("", 0)
        groups.setdefault((recording.source, episode.spec_hash, *deal), []).append(place)
    values: list[tuple[float, ...] | None] = [None] * len(recordings)
    for places in groups.values():
        if len(places) < 2:
            continue
        episodes = [recordings[place].episode for place in places]
        per_player = [_by_seat(episodes, player, estimate) for player in range(episodes[0].num_players)]
        for number, place in enumerate(places):
            values[place] = _in_turn_order(episodes[number], [games[number] for games in per_player])
    return values


def _by_seat(episodes: Sequence[Episode], player: int, estimate: Estimator) -> list[list[float]]:
    seats: dict[str, list[int]] = {}
    for number, episode in enumerate(episodes):
        seats.setdefault(episode.seats[player] if episode.seats else "", []).append(number)
    found: list[list[float]] = [[] for _ in episodes]
    for numbers in seats.values():
        for number, values in zip(numbers, estimate([episodes[one] for one in numbers], player), strict=True):
            found[number] = values
    return found


def _in_turn_order(episode: Episode, per_player: Sequence[Sequence[float]]) -> tuple[float, ...]:
    own = [iter(values) for values in per_player]
    return tuple(next(own[turn.player]) for turn in episode.turns)
