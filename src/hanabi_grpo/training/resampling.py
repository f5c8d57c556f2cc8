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
"""An advantage below this share of its group's largest reward is rounding."""


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

    worth_of = _Worths(
        estimator=run_estimator(link.settings),
        trained=trained,
        reward_clip=link.settings.reward_clip,
        min_games=min_games,
    )
    rows = training_rows(link.settings)
    groups = list(result.groups)
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
        for place in positions:
            # Of equals the first: its own.
            if worths_of_candidates[place] > worths[place]:
                groups[place] = candidates[place]
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
    return UsedGames(drawn=drawn, groups=used, problems=problems, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worths:
    """What groups are good for beside each other."""

    estimator: Estimator
    """That of the run, which compares within groups, or within tasks."""
    trained: Sequence[str]
    """See `resample`."""
    reward_clip: float | None
    """HANABI_REWARD_CLIP."""
    min_games: int
    """Fewest games of a group that is used."""

    def __call__(self, groups: Sequence[Sequence[Episode]]) -> list[_Worth]:
        """Return the worth of each of some groups that a step would learn from."""
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
        """Return the numbers of the groups in which a turn of a seat has an advantage.

        None has where the seat is not trained.
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
