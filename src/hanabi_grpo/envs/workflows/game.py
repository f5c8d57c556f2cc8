"""Workflows as games: in each step some seats answer at the same time, and see what the others said
in the step before.

| workflow | steps | the team's answer |
|---|---|---|
| vote | all | the majority |
| debate | all, all, … | the majority of the last round |
| summary | all but the last; the last one | the last seat's |
| pioneer_observer | the first; the second | the second seat's |

So the last step's majority is the team's answer in all of them.
"""

import copy
import itertools
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Generic, NamedTuple, Self, TypeVar

from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows.answers import majority, read_answer, said, same
from hanabi_grpo.envs.workflows.config import (
    DebateConfig,
    PioneerObserverConfig,
    VoteConfig,
    WorkflowConfig,
)
from hanabi_grpo.envs.workflows.problems import Problem, Source

C = TypeVar("C", bound=WorkflowConfig)
V = TypeVar("V", bound=VoteConfig)
GAMMA = 0.3
"""How much less a round later counts in `later_rounds`."""
Parts = list[dict[str, float]]


class View(NamedTuple):
    """What a script is shown."""

    question: str
    own: str | None
    """What the player said last."""
    others: tuple[str, ...]
    """What the others said in the step before."""


class WorkflowGame(base.Game, Generic[C]):
    """One problem, answered in steps."""

    def __init__(
        self, config: C, steps: Sequence[tuple[int, ...]], source: Source, problem: Problem
    ) -> None:
        """Start; `steps` are the seats that answer in each."""
        self.config, self.steps, self.source, self.problem = config, steps, source, problem
        self.num_players = len({seat for step in steps for seat in step})
        self.said: list[dict[int, str]] = []
        """Per step what each seat said, or `SKIP`."""
        self.right: list[dict[int, float]] = []
        """Per step and seat 1.0 for a right answer, else 0.0."""

    def to_act(self) -> tuple[int, ...]:
        return self.steps[len(self.said)] if len(self.said) < len(self.steps) else ()

    def message(self, player: int) -> str:
        """Return what others said, with the question before it on a player's first turn."""
        view = self.view(player)
        whole = self.config.window is not None or view.own is None
        return self._worded(view if whole else view._replace(question="", own=None))

    def state_message(self, player: int) -> str:
        """Return the question, what the player said last, and what others said in the step
        before.
        """
        return self._worded(self.view(player))

    def view(self, player: int) -> View:
        own = next((step[player] for step in reversed(self.said) if player in step), None)
        before = self.said[-1] if self.said and player in self.to_act() else {}
        others = tuple(self._shown(text) for seat, text in before.items() if seat != player)
        return View(self.problem.question, None if own is None else self._shown(own), others)

    def legal(self, player: int) -> tuple[str, ...] | None:
        return None if player in self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return what a reply says beside its thoughts, None without an answer."""
        text = said(reply)
        return None if text is None or self.answer(text) is None else text

    def answer(self, text: str) -> str | None:
        """Return the answer in what a seat said."""
        return None if text == base.SKIP else read_answer(text, self.config.style)

    def step(self, actions: Mapping[int, str]) -> Parts:
        """Take the answers of one step and pay for them."""
        answers = {seat: self.answer(text) for seat, text in actions.items()}
        self.right.append({seat: self._worth(answer) for seat, answer in answers.items()})
        self.said.append(dict(actions))
        parts: Parts = [{} for _ in range(self.num_players)]
        for seat, right in self.right[-1].items():
            if self.config.reward_correct and not any(
                seat in later for later in self.steps[len(self.said) :]
            ):
                parts[seat]["correct"] = self.config.reward_correct * right
        if self.config.reward_team and not self.to_act():
            for own in parts:
                own["team"] = self.config.reward_team * self.worth(-1)
        return parts

    def worth(self, step: int, without: int | None = None) -> float:
        """Return what the majority of a step is worth, see `majority`; also `without` one seat."""
        seats = [seat for seat in self.said[step] if seat != without]
        return majority(
            [self.answer(self.said[step][seat]) for seat in seats],
            [self.right[step][seat] for seat in seats],
        )

    def result(self) -> Mapping[str, float]:
        """Return shares of right answers, and what the team made of the first ones.

        `final` is the team's answer, `alone` the mean of the first step's, given without seeing any
        other; final = alone + corrected - misled. `agreement` is the share of pairs of seats whose
        last answers are the same."""
        final = 0.0 if self.to_act() else self.worth(-1)
        alone = fmean(self.right[0].values()) if self.right else 0.0
        last = {seat: self.answer(text) for step in self.said for seat, text in step.items()}
        pairs = list(itertools.combinations(last.values(), 2))
        agreed = [
            float(one is not None and other is not None and same(one) == same(other))
            for one, other in pairs
        ]
        return {
            "final": final,
            "alone": alone,
            "corrected": (1 - alone) * final,
            "misled": alone * (1 - final),
            **({"agreement": fmean(agreed)} if pairs else {}),
        }

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin.said, twin.right = [*self.said], [*self.right]
        return twin

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return the solution, and what others said unless the player is shown it now."""
        seen = len(self.said) - 1 if player in self.to_act() else -1
        others = {
            (number, seat): text
            for number, step in enumerate(self.said)
            for seat, text in step.items()
            if seat != player and number != seen
        }
        return {"solution": self.problem.answer} | ({"what others said": others} if others else {})

    def resampled(self, player: int, rng: random.Random) -> Self:
        """Return a game with another solution, and with other texts in the place of hidden ones."""
        other, secret = self.copy(), self.hidden(player).get("what others said", {})
        other.problem = Problem(self.problem.question, str(rng.randrange(1000)))
        other.said = [
            {
                seat: f"{rng.randrange(1000)}" if (number, seat) in secret else text
                for seat, text in step.items()
            }
            for number, step in enumerate(self.said)
        ]
        return other

    def _worth(self, answer: str | None) -> float:
        return 0.0 if answer is None else float(self.source.is_right(self.problem, answer))

    def _shown(self, text: str) -> str:
        if text == base.SKIP:
            return "none" if self.config.style == "compact" else "(no answer)"
        is_short = self.config.show == "answer" or self.config.style == "compact"
        return (self.answer(text) or text) if is_short else text

    def _worded(self, view: View) -> str:
        if self.config.style == "compact":
            own = ["own", view.own] if view.own is not None else []
            others = [f"other {text}" for text in view.others]
            return " ".join(filter(None, [view.question, *own, *others]))
        parts = [view.question] if view.question else []
        parts += [f"You answered:\n{view.own}"] if view.own is not None else []
        parts += [f"Another player answered:\n{text}" for text in view.others]
        return "\n\n".join(
            [*parts, "Your answer?" if len(parts) <= 1 else "Your answer, after reading these?"]
        )


class VoteGame(WorkflowGame[V]):
    """All at once."""

    def step(self, actions: Mapping[int, str]) -> Parts:
        """Pay at the end also what each seat changed: the majority with it, minus the majority of
        the others.
        """
        parts = super().step(actions)
        if self.config.reward_difference and not self.to_act():
            for seat, own in enumerate(parts):
                own["difference"] = self.config.reward_difference * (
                    self.worth(-1) - self.worth(-1, seat)
                )
        return parts


class DebateGame(VoteGame[DebateConfig]):
    """All at once, several times."""

    def late(self) -> Sequence[Parts]:
        """Pay each round as MAPoRL does (arXiv 2502.18439).

        Seat a of n gets for round t [v_ta + sum over later rounds t' of gamma^(t'-t) mean_a v_t'a]
        / sum of the gamma^(t'-t), v_ta being 1 for a right answer."""
        if not self.config.reward_later_rounds:
            return []
        means, paid = [fmean(step.values()) for step in self.right], []
        for number, step in enumerate(self.right):
            fade = [GAMMA**later for later in range(len(means) - number)]
            after = sum(one * mean for one, mean in zip(fade[1:], means[number + 1 :], strict=True))
            scale = self.config.reward_later_rounds / sum(fade)
            paid.append(
                [{"later_rounds": scale * (step[seat] + after)} for seat in range(self.num_players)]
            )
        return paid

    def result(self) -> Mapping[str, float]:
        """Add each round's majority: what the team would have answered then."""
        made = len(self.said)
        rounds = {
            f"round_{one + 1}": self.worth(one) if one < made else 0.0
            for one in range(self.config.rounds)
        }
        return {**super().result(), **rounds}


class PioneerObserverGame(WorkflowGame[PioneerObserverConfig]):
    """One after the other."""

    def step(self, actions: Mapping[int, str]) -> Parts:
        """Pay both for each answer, so that either gets r1 + r2 as in CORY (arXiv 2410.06101)."""
        parts = super().step(actions)
        if self.config.reward_sum:
            for own in parts:
                own["sum"] = self.config.reward_sum * sum(self.right[-1].values())
        return parts
