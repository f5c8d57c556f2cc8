"""Games that HANABI_GAME_TIMEOUT ended: how they may bias training, and tasks to replace.

Games that are dropped because they took too long are not lost at random. If long games earn more
or less than short ones, the remaining games are a biased sample of the policy. So a step with late
games reports figures about them, and the correlation of length and reward that would cause a bias.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.types import DroppedGame, Episode

_FILE = "late_tasks.json"
"""File in the run folder with the numbers of the tasks whose games were all late."""
_FEWEST_GAMES = 3
"""Fewest games for a correlation."""


def late_figures(
    groups: Sequence[Sequence[Episode]], dropped: Sequence[DroppedGame]
) -> dict[str, float]:
    """Return a step's figures of late games; empty if no game was late.

    Args:
        groups: Per task, the finished games.
        dropped: The games that were not finished.

    Returns:
        `late/share`, the share of late games among all that were finished or late; `late/turns` and
        `late/reward`, the mean number of turns of late games and a player's mean reward when they
        were stopped; and `late/length_effect`, the absolute correlation of turns and reward among
        the finished games, each minus the mean of its group, as estimators compare them.
    """
    late = [game for game in dropped if game.is_late]
    if not late:
        return {}
    num_finished = sum(len(group) for group in groups)
    figures = {
        "late/share": len(late) / (len(late) + num_finished),
        "late/turns": fmean(game.num_turns for game in late),
    }
    rewards = [fmean(game.rewards) for game in late if game.rewards]
    if rewards:
        figures["late/reward"] = fmean(rewards)
    effect = _length_effect(groups)
    if effect is not None:
        figures["late/length_effect"] = effect
    return figures


def _length_effect(groups: Sequence[Sequence[Episode]]) -> float | None:
    """Return |correlation| of turns and reward within groups; None if one is constant."""
    lengths: list[float] = []
    rewards: list[float] = []
    for group in groups:
        group_lengths = [float(len(episode.moves)) for episode in group]
        group_rewards = []
        for episode in group:
            players = range(episode.num_players)
            group_rewards.append(fmean(episode.reward(player) for player in players))
        lengths += _centered(group_lengths)
        rewards += _centered(group_rewards)
    if len(lengths) < _FEWEST_GAMES:
        return None
    covariance = sum(x * y for x, y in zip(lengths, rewards, strict=True))
    variances = sum(x * x for x in lengths) * sum(y * y for y in rewards)
    if variances <= 0.0:
        return None
    return abs(covariance) / math.sqrt(variances)


def _centered(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    mean = fmean(values)
    return [value - mean for value in values]


def late_tasks(
    tasks: Sequence[TaskRow], groups: Sequence[Sequence[Episode]], dropped: Sequence[DroppedGame]
) -> list[int]:
    """Return the numbers of the tasks whose games were all late.

    Args:
        tasks: The tasks that were played.
        groups: Per task, the finished games.
        dropped: The games that were not finished.
    """
    numbers = []
    for task, group in zip(tasks, groups, strict=True):
        own = [game for game in dropped if (game.suite, game.seed) == (task.suite, task.seed)]
        if not group and own and all(game.is_late for game in own):
            numbers.append(task.number)
    return numbers


def remember_late_tasks(run_folder: Path, numbers: Sequence[int]) -> None:
    """Add task numbers to the file in the run folder.

    Raises:
        OSError: The file cannot be written.
    """
    known = read_late_tasks(run_folder)
    if not known.issuperset(numbers):
        write_json_atomic(run_folder / _FILE, sorted(known.union(numbers)))


def read_late_tasks(run_folder: Path) -> frozenset[int]:
    """Return the numbers of the tasks that a resumed run replaces with others.

    Otherwise the resumed run would draw these tasks again right away, and lose the same time again.
    """
    try:
        numbers = json.loads(read_bytes(run_folder / _FILE, MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    if not isinstance(numbers, list):
        return frozenset()
    return frozenset(number for number in numbers if type(number) is int)
