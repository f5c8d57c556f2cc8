"""Which games a step learns from; HANABI_RESAMPLE_FLAT=k: further tasks take the place of flat
ones, in up to k rounds.

A group is flat (of zero variance) where all games of its task earn the same for each player that
learns in the step. An estimator that compares within groups gives all its turns the advantage 0, so
leaving it out biases nothing: tasks that teach something come up more often. With one that compares
over the step it would; `settings.steps` refuses that.

Which tasks come in which round is a function of the tasks in whose place they come
(`further_task`), so a resumed run asks for the same ones. A place that stays flat keeps its own
group, for an entropy bonus.

Source: dynamic sampling, DAPO (arXiv 2503.14476, section 3.2), which samples until the batch is
full.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import further_task, training_rows
from hanabi_grpo.training.batching import MIN_GAMES, usable_groups
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.metrics import has_spread
from hanabi_grpo.types import Episode


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


def resample(
    link: Link,
    names: tuple[str, ...],
    tasks: Sequence[TaskRow],
    result: RolloutResult,
    *,
    version: int,
    trained: Sequence[str],
) -> UsedGames:
    """Play further tasks in the place of those that are flat, or have fewer than two games left.

    `tasks` are the step's own, and `result` their games; the server
    plays `version`. `trained` are per seat the word of the adapter that learns in this step, else
    ""."""
    drawn, problems = usable_groups(result.groups, result.dropped)
    if not (rounds := link.settings.resample_flat):
        return UsedGames(drawn=drawn, groups=drawn, problems=problems, metrics={})

    def rank(group: Sequence[Episode]) -> int:
        return 0 if len(group) < MIN_GAMES else 1 + has_spread(group, trained)

    start, rows, places, answers = (
        time.perf_counter(),
        training_rows(link.settings),
        list(result.groups),
        [result],
    )
    while len(answers) <= rounds and (
        open_places := [one for one, group in enumerate(places) if rank(group) < 2]
    ):
        further = [further_task(rows, tasks[place].number, len(answers)) for place in open_places]
        answers.append(answer := link.play(further, names, version))
        for place, group in zip(open_places, answer.groups, strict=True):
            # Of equals the first: its own.
            places[place] = max(places[place], group, key=rank)
        problems += usable_groups(answer.groups, answer.dropped)[1]
    groups = [group for group in places if rank(group)]
    metrics = {
        "resample/rounds": float(len(answers) - 1),
        "resample/games_played": float(
            sum(len(group) for answer in answers for group in answer.groups)
        ),
        "resample/games_used": float(sum(map(len, groups))),
        "time/resample": time.perf_counter() - start,
    }
    for when, usable in (("before", drawn), ("after", groups)):
        if usable:
            metrics[f"resample/flat_{when}"] = sum(rank(group) == 1 for group in usable) / len(
                usable
            )
    return UsedGames(drawn=drawn, groups=groups, problems=problems, metrics=metrics)
