"""HANABI_RESAMPLE_FLAT=k: further tasks take the place of flat ones, in up to k rounds.

A group is flat (of zero variance) where the estimator gives all turns of the players that learn in
the step the advantage 0: with most estimators because all games of its task earn the same. Leaving
it out biases nothing, and tasks that teach something come up more often. With an estimator that
compares over the step it would; `settings.steps` refuses that.

Which tasks come in which round is a function of the tasks in whose place they come
(`further_task`), so a resumed run asks for the same ones. A place that stays flat keeps its own
group, for an entropy bonus.

Source: dynamic sampling, DAPO (arXiv 2503.14476, section 3.2), which samples until the batch is
full.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import further_task, training_rows
from hanabi_grpo.settings.objective import run_estimator
from hanabi_grpo.training.advantages import step_advantages
from hanabi_grpo.training.batching import MIN_GAMES, usable_groups
from hanabi_grpo.training.estimators import Estimator
from hanabi_grpo.training.estimators.arithmetic import flatten
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.groups import flatten_groups, trained_groups
from hanabi_grpo.training.rewards import clip_returns
from hanabi_grpo.types import Episode

_ROUNDING = 1e-9
"""An advantage below this share of the group's largest reward is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedGames:
    """What a step learns from, and what that took."""

    drawn: list[list[Episode]]
    """Groups of the step's own tasks that can be trained on; figures of play are of them."""
    groups: list[list[Episode]]
    """Groups that are learned from, in the order of the step's tasks."""
    problems: list[str]
    """A sentence for each task that lost games."""
    metrics: dict[str, float]
    """`resample/…` and `time/resample` (seconds); none without HANABI_RESAMPLE_FLAT."""


class _Worth(IntEnum):
    """What a group is good for."""

    UNUSABLE = 0
    """It has too few games."""
    FLAT = 1
    """No turn of a player that learns is better or worse than the others."""
    SPREAD = 2
    """Some are."""


def resample(
    link: Link,
    names: tuple[str, ...],
    tasks: Sequence[TaskRow],
    result: RolloutResult,
    *,
    version: int,
    trained: Sequence[str],
) -> UsedGames:
    """Play further tasks in the place of those that are flat, or have too few games left.

    Args:
        link: To the server, which plays `version`.
        names: The run's adapters.
        tasks: The step's own.
        result: Their games.
        version: Of the adapters that the server holds.
        trained: Per seat the adapter that learns in this step, else "", see
            `seats.SeatAssignment`.
    """
    start = time.perf_counter()
    min_games = min(MIN_GAMES, link.settings.num_generations)
    drawn, problems = usable_groups(result.groups, result.dropped, min_games)
    num_rounds = link.settings.resample_flat
    if not num_rounds:
        return UsedGames(drawn=drawn, groups=drawn, problems=problems, metrics={})

    def worth(group: Sequence[Episode]) -> _Worth:
        if len(group) < min_games:
            return _Worth.UNUSABLE
        has_advantages = _has_advantages(group, estimator, trained, link.settings.reward_clip)
        return _Worth.SPREAD if has_advantages else _Worth.FLAT

    estimator = run_estimator(link.settings)
    rows = training_rows(link.settings)
    groups = list(result.groups)
    answers = [result]
    for attempt in range(1, num_rounds + 1):
        positions = []
        further = []
        for position, group in enumerate(groups):
            if worth(group) < _Worth.SPREAD:
                positions.append(position)
                further.append(further_task(rows, tasks[position].number, attempt))
        if not positions:
            break
        answer = link.play(further, names, version)
        answers.append(answer)
        for position, group in zip(positions, answer.groups, strict=True):
            # Of equals the first: its own.
            groups[position] = max(groups[position], group, key=worth)
        _, problems_of_answer = usable_groups(answer.groups, answer.dropped, min_games)
        problems += problems_of_answer

    used = [group for group in groups if worth(group) > _Worth.UNUSABLE]
    num_played = 0
    for answer in answers:
        num_played += len(flatten_groups(answer.groups))
    metrics = {
        "resample/rounds": float(len(answers) - 1),
        "resample/games_played": float(num_played),
        "resample/games_used": float(len(flatten_groups(used))),
        "time/resample": time.perf_counter() - start,
    }
    for when, usable in (("before", drawn), ("after", used)):
        if usable:
            num_flat = sum(worth(group) is _Worth.FLAT for group in usable)
            metrics[f"resample/flat_{when}"] = num_flat / len(usable)
    return UsedGames(drawn=drawn, groups=used, problems=problems, metrics=metrics)


def _has_advantages(
    group: Sequence[Episode],
    estimator: Estimator,
    trained: Sequence[str],
    reward_clip: float | None,
) -> bool:
    """Tell whether a turn of a player that learns has another advantage than 0 in its group.

    Args:
        group: Games of one task.
        estimator: That of the run, which compares within groups.
        trained: See `resample`.
        reward_clip: HANABI_REWARD_CLIP.
    """
    for seat in range(len(trained)):
        paid = [list(group)]
        if reward_clip is not None:
            paid = clip_returns(paid, seat, reward_clip)
        own_groups = trained_groups(paid, seat, trained)
        largest_reward = 0.0
        for episode in flatten_groups(own_groups):
            for turn in episode.turns:
                largest_reward = max(largest_reward, abs(turn.reward(seat)))
        [games] = step_advantages(own_groups, seat, estimator)
        for advantage in flatten(games):
            if abs(advantage) > _ROUNDING * largest_reward:
                return True
    return False
