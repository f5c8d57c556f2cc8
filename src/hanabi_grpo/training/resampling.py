"""HANABI_RESAMPLE_FLAT=k: further tasks replace those with flat groups, in up to k rounds.

A group is flat (zero-variance) if the estimator gives the advantage 0 to all turns of the players
that learn in the step. With most estimators this happens if all games of the task have the same
return. Leaving such a group out introduces no bias, and informative tasks become more frequent. It
would introduce a bias with an estimator that compares over the step; `settings.steps` refuses that.

The further tasks of each round are a function of the tasks that they replace (`further_task`), so a
resumed run requests the same ones. If all further groups are flat, too, the original group is kept,
for an entropy bonus.

Source: dynamic sampling, DAPO (arXiv 2503.14476, section 3.2), which samples until the batch is
full.
"""

import logging
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

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9
"""An advantage below this share of its group's largest reward counts as rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedGames:
    """The groups that a step trains on, and the cost of getting them."""

    drawn: list[list[Episode]]
    """Usable groups of the step's own tasks; metrics of play cover these."""
    groups: list[list[Episode]]
    """Groups to train on, in the order of the step's tasks."""
    tasks: list[TaskRow]
    """The task of each of `groups`."""
    problems: list[str]
    """A sentence for each task that lost games."""
    metrics: dict[str, float]
    """`resample/…` and `time/resample` (seconds); empty without HANABI_RESAMPLE_FLAT."""
    further: Sequence[Sequence[Episode]] = ()
    """The groups of all further tasks, whether used or not."""


class _Worth(IntEnum):
    """How useful a group is for training."""

    UNUSABLE = 0
    """The group has too few games."""
    FLAT = 1
    """All turns of the players that learn have the advantage 0."""
    SPREAD = 2
    """Some turns have another advantage."""


def resample(
    link: Link,
    names: tuple[str, ...],
    tasks: Sequence[TaskRow],
    result: RolloutResult,
    *,
    version: int,
    trained: Sequence[str],
) -> UsedGames:
    """Replace tasks whose groups are flat or have too few games left, by playing further tasks.

    Args:
        link: Link to the server, which plays `version`.
        names: The run's adapters.
        tasks: The step's own tasks.
        result: Their games.
        version: Version of the adapters on the server.
        trained: Per seat, the adapter that learns in this step, else "", see
            `seats.SeatAssignment`.
    """
    start = time.perf_counter()
    min_games = min(MIN_GAMES, link.settings.num_generations)
    drawn, problems = usable_groups(result.groups, result.dropped, min_games)
    num_rounds = link.settings.resample_flat
    if not num_rounds:
        return UsedGames(
            drawn=drawn,
            groups=drawn,
            tasks=_tasks_of_usable(tasks, result.groups, min_games),
            problems=problems,
            metrics={},
        )

    worth_of = _Worths(
        estimator=run_estimator(link.settings),
        trained=trained,
        reward_clip=link.settings.reward_clip,
        min_games=min_games,
    )
    rows = training_rows(link.settings)
    groups = list(result.groups)
    tasks_of_groups = list(tasks)
    answers = [result]
    for attempt in range(1, num_rounds + 1):
        worths = worth_of(groups)
        positions = [place for place, worth in enumerate(worths) if worth < _Worth.SPREAD]
        if not positions:
            break
        further = [further_task(rows, tasks[place].number, attempt) for place in positions]
        answer = link.play(further, names, version)
        answers.append(answer)
        candidates = list(groups)
        for place, group in zip(positions, answer.groups, strict=True):
            candidates[place] = group
        worths_of_candidates = worth_of(candidates)
        for place, task in zip(positions, further, strict=True):
            # Prefer the first of equally useful groups: the task's own.
            if worths_of_candidates[place] > worths[place]:
                groups[place] = candidates[place]
                tasks_of_groups[place] = task
        _, problems_of_answer = usable_groups(answer.groups, answer.dropped, min_games)
        problems += problems_of_answer

    used = [group for group in groups if len(group) >= min_games]
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
            num_flat = worth_of(usable).count(_Worth.FLAT)
            metrics[f"resample/flat_{when}"] = num_flat / len(usable)
    if metrics.get("resample/flat_after") == 1:
        logger.warning(
            "all %d groups are flat, also after %d rounds of further tasks: the step learns "
            "nothing from the reward",
            len(used),
            len(answers) - 1,
        )
    further_groups: list[list[Episode]] = []
    for answer in answers[1:]:
        further_groups += answer.groups
    return UsedGames(
        drawn=drawn,
        groups=used,
        tasks=_tasks_of_usable(tasks_of_groups, groups, min_games),
        problems=problems,
        metrics=metrics,
        further=further_groups,
    )


def _tasks_of_usable(
    tasks: Sequence[TaskRow], groups: Sequence[Sequence[Episode]], min_games: int
) -> list[TaskRow]:
    """Return the tasks whose groups have enough games."""
    usable = []
    for task, group in zip(tasks, groups, strict=True):
        if len(group) >= min_games:
            usable.append(task)
    return usable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worths:
    """Computes how useful groups are."""

    estimator: Estimator
    """The run's estimator, which compares within groups, or within tasks."""
    trained: Sequence[str]
    """See `resample`."""
    reward_clip: float | None
    """HANABI_REWARD_CLIP."""
    min_games: int
    """Fewest games of a usable group."""

    def __call__(self, groups: Sequence[Sequence[Episode]]) -> list[_Worth]:
        """Return the worth of each group, if a step trained on these groups."""
        usable = []
        worths = []
        for group in groups:
            is_usable = len(group) >= self.min_games
            usable.append(list(group) if is_usable else [])
            worths.append(_Worth.FLAT if is_usable else _Worth.UNUSABLE)
        for seat in range(len(self.trained)):
            for number in self._with_advantages(usable, seat):
                worths[number] = _Worth.SPREAD
        return worths

    def _with_advantages(self, groups: list[list[Episode]], seat: int) -> list[int]:
        """Return the numbers of the groups in which a turn of a seat has a nonzero advantage.

        There are none if the seat is not trained.
        """
        if self.reward_clip is not None:
            groups = clip_returns(groups, seat, self.reward_clip)
        own_groups = trained_groups(groups, seat, self.trained)
        advantages = step_advantages(own_groups, seat, self.estimator)
        numbers = []
        for number, (group, games) in enumerate(zip(own_groups, advantages, strict=True)):
            rewards = [abs(turn.reward(seat)) for episode in group for turn in episode.turns]
            sizes = [abs(advantage) for advantage in flatten(games)]
            if max(sizes, default=0.0) > _ROUNDING * max(rewards, default=0.0):
                numbers.append(number)
        return numbers
