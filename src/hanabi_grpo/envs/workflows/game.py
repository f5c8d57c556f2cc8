"""Workflows as games: in each step, some seats answer at once and see the previous step.

| workflow | steps | the team's answer |
|---|---|---|
| vote | all | the majority |
| debate | all, all, … | the majority of the last round |
| summary | all but the last; the last one | the last seat's |
| pioneer_observer | the first; the second | the second seat's |
| revise | the solver (the critic, the solver), … | the solver's last |

In all of them, the team's answer is the majority of the last step.
"""

import copy
import itertools
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Generic, NamedTuple, Self, TypeVar

from hanabi_grpo.envs import base
from hanabi_grpo.envs.people import Choice, Scene
from hanabi_grpo.envs.texts import public_text, quote
from hanabi_grpo.envs.workflows.answers import (
    majority_worth,
    normalize,
    read_answer,
)
from hanabi_grpo.envs.workflows.config import (
    DebateConfig,
    PioneerObserverConfig,
    ReviseConfig,
    VoteConfig,
    WorkflowConfig,
)
from hanabi_grpo.envs.workflows.problems import Problem, Source

C = TypeVar("C", bound=WorkflowConfig)
V = TypeVar("V", bound=VoteConfig)

GAMMA = 0.3
"""Discount per later round in `later_rounds`."""
_RESAMPLED_ANSWERS = 1000
"""Range of numbers from which `resampled` draws replacements for hidden texts."""
WRONG = "wrong"
"""The verdict on an answer in the compact style."""
_SOLUTION = "solution"
_OTHERS_TEXTS = "what others said"

Parts = list[dict[str, float]]
"""Reward parts of one step, per player."""


class View(NamedTuple):
    """What a script is shown."""

    question: str
    own: str | None
    """The player's last text, None before its first turn; `SKIP` for a reply without an answer."""
    others: tuple[str, ...]
    """What the others said in the previous step; `SKIP` for a reply without an answer."""
    verdict: str = ""
    """The verifier's verdict on `own`; "" if there is none."""


class WorkflowGame(base.Game, Generic[C]):
    """One problem, answered in steps."""

    def __init__(
        self, config: C, steps: Sequence[tuple[int, ...]], source: Source, problem: Problem
    ) -> None:
        """Start an episode.

        Args:
            config: The settings.
            steps: The seats that answer in each step.
            source: Source of the problem; it decides which answers are right.
            problem: The problem to answer.
        """
        self.config = config
        self.steps = steps
        self.source = source
        self.problem = problem
        self.num_players = len(set(itertools.chain.from_iterable(steps)))
        self.texts: list[dict[int, str]] = []
        """What each seat said, or `SKIP`, per step."""
        self.correct: list[dict[int, float]] = []
        """1.0 for a right answer, 0.0 otherwise, per step and seat."""

    def to_act(self) -> tuple[int, ...]:
        step = len(self.texts)
        if step >= len(self.steps):
            return ()
        return self.steps[step]

    def message(self, player: int) -> str:
        """Return what others said, preceded by the question on a player's first turn."""
        view = self.view(player)
        is_first_turn = view.own is None
        has_whole_conversation = self.config.window is None
        if has_whole_conversation and not is_first_turn:
            view = view._replace(question="", own=None)
        return self._prompt(view)

    def state_message(self, player: int) -> str:
        """Return the question, the player's last text, and what others said in the last step."""
        return self._prompt(self.view(player))

    def view(self, player: int) -> View:
        own = None
        for texts in reversed(self.texts):
            if player in texts:
                own = self._shown(texts[player])
                break
        others = []
        if self.texts and player in self.to_act():
            for seat, text in self.texts[-1].items():
                if seat != player:
                    others.append(self._shown(text))
        return View(self.problem.question, own, tuple(others))

    def scene(self, player: int) -> Scene:
        """Return the question, and the answers so far that the player may know, in English."""
        readable = self.copy()
        readable.config = self.config.model_copy(update={"style": "full"})
        nothing: tuple[Choice, ...] = ()
        is_asked = player in self.to_act()
        return Scene(
            table=readable.state_message(player) if is_asked else self.problem.question,
            choices=None if is_asked else nothing,
            prefix="Answer: " if self.config.style == "full" else "",
        )

    def legal(self, player: int) -> tuple[str, ...] | None:
        return None if player in self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return what a reply says outside its thoughts, or None without an answer."""
        text = public_text(reply)
        if text is None or self.answer(text) is None:
            return None
        return text

    def answer(self, text: str) -> str | None:
        """Return the answer in a seat's text."""
        if text == base.SKIP:
            return None
        return read_answer(text, self.config.style)

    def step(self, actions: Mapping[int, str]) -> Parts:
        """Take the answers of one step and return their rewards."""
        correct = {}
        for seat, text in actions.items():
            correct[seat] = self._correctness(self.answer(text))
        self.correct.append(correct)
        self.texts.append(dict(actions))
        parts: Parts = [{} for _ in range(self.num_players)]
        if self.config.reward_correct:
            for seat, is_correct in correct.items():
                if not self._answers_again(seat):
                    parts[seat]["correct"] = self.config.reward_correct * is_correct
        if self.config.reward_team and not self.to_act():
            for seat_parts in parts:
                seat_parts["team"] = self.config.reward_team * self.team_worth(-1)
        return parts

    def team_worth(self, step: int, without: int | None = None) -> float:
        """Return the value of the majority answer of a step; see `majority_worth`.

        Args:
            step: Index of the step; -1 is the last one.
            without: A seat whose answer is ignored.
        """
        answers = []
        correct = []
        for seat, text in self.texts[step].items():
            if seat != without:
                answers.append(self.answer(text))
                correct.append(self.correct[step][seat])
        return majority_worth(answers, correct)

    def result(self) -> Mapping[str, float]:
        """Return the shares of right answers, and how the team changed the first ones.

        `final` is the correctness of the team's answer. `alone` is the mean correctness in the
        first step, where no seat has seen another's answer; final = alone + corrected - misled.
        `agreement` is the share of pairs of seats whose last answers are the same.
        """
        is_over = not self.to_act()
        final = self.team_worth(-1) if is_over else 0.0
        alone = fmean(self.correct[0].values()) if self.correct else 0.0
        figures = {
            "final": final,
            "alone": alone,
            "corrected": (1 - alone) * final,
            "misled": alone * (1 - final),
        }
        agreement = self._agreement()
        if agreement is not None:
            figures["agreement"] = agreement
        return figures

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin.texts = list(self.texts)
        twin.correct = list(self.correct)
        return twin

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return the solution, and what others said unless the player is shown it now."""
        secrets: dict[str, Any] = {_SOLUTION: self.problem.answer}
        shown_step = len(self.texts) - 1 if player in self.to_act() else None
        others = {}
        for step, texts in enumerate(self.texts):
            for seat, text in texts.items():
                if seat != player and step != shown_step:
                    others[step, seat] = text
        if others:
            secrets[_OTHERS_TEXTS] = others
        return secrets

    def resampled(self, player: int, rng: random.Random) -> Self:
        """Return a game with another solution and other texts instead of the hidden ones."""
        hidden_texts = self.hidden(player).get(_OTHERS_TEXTS, {})
        other = self.copy()
        other.problem = Problem(self.problem.question, str(rng.randrange(_RESAMPLED_ANSWERS)))
        other.texts = [dict(texts) for texts in self.texts]
        for step, seat in hidden_texts:
            other.texts[step][seat] = str(rng.randrange(_RESAMPLED_ANSWERS))
        return other

    def _answers_again(self, seat: int) -> bool:
        """Return whether a seat answers in a later step."""
        steps_to_come = self.steps[len(self.texts) :]
        return any(seat in step for step in steps_to_come)

    def _correctness(self, answer: str | None) -> float:
        if answer is None:
            return 0.0
        return float(self.source.is_right(self.problem, answer))

    def _agreement(self) -> float | None:
        """Return the share of pairs of seats whose last answers agree, or None without pairs."""
        last: dict[int, str | None] = {}
        for texts in self.texts:
            for seat, text in texts.items():
                answer = self.answer(text)
                last[seat] = None if answer is None else normalize(answer)
        pairs = list(itertools.combinations(last.values(), 2))
        if not pairs:
            return None
        agreed = [first is not None and first == second for first, second in pairs]
        return sum(agreed) / len(pairs)

    def _shown(self, text: str) -> str:
        """Return the part of a seat's text that it and others read."""
        if self.config.style == "compact" or self.config.show == "answer":
            return self.answer(text) or text
        return text

    def _in_prompt(self, text: str, missing: str = "(no answer)") -> str:
        """Return a seat's text as it stands in a prompt, marked so that it is no part of the rest.

        Args:
            text: What the seat said, or `SKIP`.
            missing: What stands for `SKIP` in the full style.
        """
        if self.config.style == "compact":
            return "none" if text == base.SKIP else "-".join(text.split())
        return missing if text == base.SKIP else quote(text)

    def _prompt(self, view: View) -> str:
        """Return the message of a turn, without the question or own text if they are missing."""
        if self.config.style == "compact":
            words = [view.question] if view.question else []
            if view.own is not None:
                words += ["own", self._in_prompt(view.own)]
            words += [f"other {self._in_prompt(text)}" for text in view.others]
            return " ".join(words)
        paragraphs = [view.question] if view.question else []
        if view.own is not None:
            paragraphs.append(f"You answered:\n{self._in_prompt(view.own)}")
        for text in view.others:
            paragraphs.append(f"Another player answered:\n{self._in_prompt(text)}")
        if len(paragraphs) <= 1:
            paragraphs.append("Your answer?")
        else:
            paragraphs.append("Your answer, after reading these?")
        return "\n\n".join(paragraphs)


class VoteGame(WorkflowGame[V]):
    """All seats answer at once."""

    def step(self, actions: Mapping[int, str]) -> Parts:
        """At the end, also reward each seat for the difference that it made.

        This is the value of the majority answer with the seat, minus the value without it.
        """
        parts = super().step(actions)
        if self.config.reward_difference and not self.to_act():
            for seat, seat_parts in enumerate(parts):
                difference = self.team_worth(-1) - self.team_worth(-1, without=seat)
                seat_parts["difference"] = self.config.reward_difference * difference
        return parts


class DebateGame(VoteGame[DebateConfig]):
    """All seats answer at once, several times."""

    def late(self) -> Sequence[Parts]:
        """Reward each round as in MAPoRL (arXiv 2502.18439).

        For round t, seat a of n gets [v_ta + sum over later rounds t' of gamma^(t'-t) mean_a v_t'a]
        / sum of the gamma^(t'-t), where v_ta is 1 for a right answer.
        """
        if not self.config.reward_later_rounds:
            return []
        means = [fmean(correct.values()) for correct in self.correct]
        rounds: list[Parts] = []
        for number, correct in enumerate(self.correct):
            discounts = [GAMMA**later for later in range(len(means) - number)]
            later_worth = 0.0
            for discount, mean in zip(discounts[1:], means[number + 1 :], strict=True):
                later_worth += discount * mean
            scale = self.config.reward_later_rounds / sum(discounts)
            parts: Parts = []
            for seat in range(self.num_players):
                parts.append({"later_rounds": scale * (correct[seat] + later_worth)})
            rounds.append(parts)
        return rounds

    def result(self) -> Mapping[str, float]:
        """Add the value of each round's majority: what the team would have answered then."""
        figures = dict(super().result())
        for number in range(self.config.rounds):
            was_played = number < len(self.texts)
            figures[f"round_{number + 1}"] = self.team_worth(number) if was_played else 0.0
        return figures


class PioneerObserverGame(WorkflowGame[PioneerObserverConfig]):
    """The two seats answer one after the other."""

    def step(self, actions: Mapping[int, str]) -> Parts:
        """Reward both for each answer, so that each gets r1 + r2 as in CORY (arXiv 2410.06101)."""
        parts = super().step(actions)
        if self.config.reward_sum:
            for seat_parts in parts:
                seat_parts["sum"] = self.config.reward_sum * sum(self.correct[-1].values())
        return parts


SOLVER = 0
"""The seat that answers in `revise`."""
CRITIC = 1
"""The seat that comments in `revise`, if there is one."""
_WRONG = {"full": "That is wrong.", "compact": WRONG}


class ReviseGame(WorkflowGame[ReviseConfig]):
    """One seat answers several times; a critic may comment in between.

    A verdict only says that an answer is wrong, so the solution stays hidden. With verdicts, a
    right answer ends the episode, because there is nothing to revise.
    """

    def to_act(self) -> tuple[int, ...]:
        return () if self._is_solved() else super().to_act()

    def view(self, player: int) -> View:
        view = super().view(player)
        if self.config.feedback == "verdict" and view.own is not None and self.to_act():
            view = view._replace(verdict=_WRONG[self.config.style])
        if player == SOLVER and view.others:
            comment = self.texts[-1][CRITIC]
            view = view._replace(others=(self._comment(comment),))
        return view

    def parse(self, player: int, reply: str) -> str | None:
        """Return what a reply says outside its thoughts; a comment need not contain an answer."""
        if player == SOLVER:
            return super().parse(player, reply)
        return public_text(reply) or None

    def step(self, actions: Mapping[int, str]) -> Parts:
        """Take an answer or a comment, and reward the change that an answer made."""
        if CRITIC in actions:
            self.texts.append(dict(actions))
            self.correct.append({})
            return [{} for _ in range(self.num_players)]
        parts = super().step(actions)
        worths = self._worths()
        if self.config.reward_gain and len(worths) > 1:
            for seat_parts in parts:
                seat_parts["gain"] = self.config.reward_gain * (worths[-1] - worths[-2])
        return parts

    def result(self) -> Mapping[str, float]:
        """Add the correctness per round; an answer that ended the episode counts for the rest."""
        figures = dict(super().result())
        worths = self._worths()
        figures["rounds"] = float(len(worths))
        last = worths[-1] if self._is_solved() else 0.0
        for number in range(self.config.rounds):
            was_played = number < len(worths)
            figures[f"round_{number + 1}"] = worths[number] if was_played else last
        return figures

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return the base class's result, without the solution once the end has revealed it."""
        secrets = dict(super().hidden(player))
        if self._is_solved():
            del secrets[_SOLUTION]
        return secrets

    def resampled(self, player: int, rng: random.Random) -> Self:
        """Return another game whose solution no verdict has ruled out."""
        other = super().resampled(player, rng)
        if self._is_solved():
            other.problem = self.problem
            return other
        if self.config.feedback != "verdict":
            return other
        wrong = set()
        for texts in self.texts:
            answer = self.answer(texts[SOLVER])
            if answer is not None:
                wrong.add(normalize(answer))
        while normalize(other.problem.answer) in wrong:
            solution = str(rng.randrange(_RESAMPLED_ANSWERS))
            other.problem = Problem(self.problem.question, solution)
        return other

    def _is_solved(self) -> bool:
        """Return whether a verdict has accepted the last answer."""
        worths = self._worths()
        return self.config.feedback == "verdict" and bool(worths) and worths[-1] == 1.0

    def _worths(self) -> list[float]:
        """Return the correctness of each answer, without the critic's steps."""
        return [correct[SOLVER] for correct in self.correct if SOLVER in correct]

    def _answers_again(self, seat: int) -> bool:
        return bool(self.to_act()) and super()._answers_again(seat)

    def _agreement(self) -> float | None:
        return None

    def _comment(self, text: str) -> str:
        """Return the part of a comment that is shown to the solver, in the full style all of it."""
        return self._shown(text) if self.config.style == "compact" else text

    def _prompt(self, view: View) -> str:
        if self.config.style == "compact":
            words = super()._prompt(view)
            return f"{words} {view.verdict}" if view.verdict else words
        is_comment = self.to_act() == (CRITIC,)
        paragraphs = [view.question] if view.question else []
        if view.own is not None:
            said = "You wrote" if is_comment else "You answered"
            missing = "(no comment)" if is_comment else "(no answer)"
            paragraphs.append(f"{said}:\n{self._in_prompt(view.own, missing)}")
        if view.verdict:
            paragraphs.append(view.verdict)
        for text in view.others:
            said = "The solver answered" if is_comment else "The critic wrote"
            missing = "(no answer)" if is_comment else "(no comment)"
            paragraphs.append(f"{said}:\n{self._in_prompt(text, missing)}")
        if is_comment:
            paragraphs.append("Your comment?")
        elif self.texts:
            paragraphs.append("Look at your answer once more. Your answer now?")
        else:
            paragraphs.append("Your answer?")
        return "\n\n".join(paragraphs)
