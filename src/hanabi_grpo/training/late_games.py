"""Games that HANABI_GAME_TIMEOUT ended: what they may bias, and tasks that are not drawn again.

A game that is dropped because it took too long is no random loss: where long games earn more or
less than short ones, the games that are left are no fair sample of the policy. So a step with late
games has figures of them, and the correlation that would make them matter.
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
"""File of the run folder with the numbers of tasks all of whose games were late."""
_FEWEST_GAMES = 3
"""Games that a correlation needs."""


def late_figures(
    groups: Sequence[Sequence[Episode]], dropped: Sequence[DroppedGame]
) -> dict[str, float]:
    """Return a step's figures of late games; none where no game was late.

    Args:
        groups: Per task the games that were finished.
        dropped: The games that were not.

    Returns:
        `late/share` of all games that were finished or late; `late/turns` and `late/reward`, the
        mean turns of late games and the mean reward of a player by then; and
        `late/length_effect`, the absolute correlation of turns and reward among the finished games,
        each less the mean of its group, as estimators compare them.
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
    """Return |correlation| of turns and reward within groups; None where one is constant."""
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
    """Return the numbers of the tasks all of whose games were late.

    Args:
        tasks: The tasks that were played.
        groups: Per task the games that were finished.
        dropped: The games that were not.
    """
    numbers = []
    for task, group in zip(tasks, groups, strict=True):
        own = [game for game in dropped if (game.suite, game.seed) == (task.suite, task.seed)]
        if not group and own and all(game.is_late for game in own):
            numbers.append(task.number)
    return numbers


def remember_late_tasks(run_folder: Path, numbers: Sequence[int]) -> None:
    """Add tasks to the file of the run folder.

    Raises:
        OSError: It cannot be written.
    """
    known = read_late_tasks(run_folder)
    if not known.issuperset(numbers):
        write_json_atomic(run_folder / _FILE, sorted(known.union(numbers)))


def read_late_tasks(run_folder: Path) -> frozenset[int]:
    """Return the tasks that a run, when it is resumed, replaces by others.

    A resumed run would draw them again first of all, and lose the same time.
    """
    try:
        numbers = json.loads(read_bytes(run_folder / _FILE, MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    if not isinstance(numbers, list):
        return frozenset()
    return frozenset(number for number in numbers if type(number) is int)
