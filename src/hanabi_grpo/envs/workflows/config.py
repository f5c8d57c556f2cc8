"""The settings of workflows."""

from typing import Literal

from pydantic import Field

from hanabi_grpo.envs.config import NO_TOOLS, TOOLS_ALLOWED, StateConfig
from hanabi_grpo.envs.workflows.problems import ALLOWED, CHAIN_SUM
from hanabi_grpo.types import MAX_PLAYERS


def _is_no_tools(tools: str | None) -> bool:
    return tools == NO_TOOLS


class WorkflowConfig(StateConfig):
    """Settings of every workflow."""

    problems: str = Field(default=CHAIN_SUM, json_schema_extra={"allowed": ALLOWED})
    """What is asked: own sums, files of questions and answers, or a data set of reasoning-gym."""
    verify: Literal["text", "math"] = Field(
        default="text",
        # What has none is hashed as before there was one.
        exclude_if="text".__eq__,
    )
    """What makes an answer right: the same text or number, or also, by the package math-verify, the
    same value."""
    chain_terms: int = Field(default=3, ge=2, le=20)
    """Numbers of a chain sum."""
    chain_highest: int = Field(default=4, ge=1, le=10**9)
    """The greatest of them; the least is 0."""
    show: Literal["reply", "answer"] = "reply"
    """What is seen of others: all that they said beside their thoughts, or their answers alone."""
    reward_correct: float = 1.0
    """Reward of a seat's own last answer, if it is right."""
    reward_team: float = 0.0
    """Reward of every seat, if the team's answer is right."""
    tools: str | None = Field(
        default=NO_TOOLS,
        # What has none is hashed as before there were any.
        exclude_if=_is_no_tools,
        json_schema_extra={"allowed": TOOLS_ALLOWED},
    )
    """Tools that players may call before they answer: none, or calculator."""


class VoteConfig(WorkflowConfig):
    """All answer at the same time; the majority decides."""

    players: int = Field(default=3, ge=1, le=MAX_PLAYERS)
    """Number of players."""
    reward_difference: float = 0.0
    """Reward of what a seat changed: the majority's worth with it minus without it."""


class DebateConfig(VoteConfig):
    """All answer in rounds, from the second one on with the others' last replies before them."""

    players: int = Field(default=2, ge=2, le=MAX_PLAYERS)
    """Number of players."""
    rounds: int = Field(default=2, ge=1, le=8)
    """Rounds of a debate."""
    reward_correct: float = 0.0
    reward_later_rounds: float = 1.0
    """Reward of each round: the own answer, and fading the mean of all answers of later rounds, as
    in MAPoRL.
    """


class SummaryConfig(WorkflowConfig):
    """The last seat answers for all, from what the others answered."""

    players: int = Field(default=3, ge=2, le=MAX_PLAYERS)
    """Number of players; the last one writes the final answer."""
    reward_correct: float = 0.5
    reward_team: float = 0.5


class PioneerObserverConfig(WorkflowConfig):
    """The pioneer answers, then the observer with the pioneer's reply before it."""

    reward_correct: float = 0.0
    reward_sum: float = 1.0
    """Reward of both for each right answer, as in CORY."""


class ReviseConfig(WorkflowConfig):
    """One seat answers several times, with its last answer before it."""

    rounds: int = Field(default=2, ge=1, le=8)
    """Answers to a problem, at most."""
    feedback: Literal["none", "verdict", "comment"] = "none"
    """What is said of the last answer: nothing; that it was wrong (a right one ends the episode);
    or the comment of a second seat, the critic.
    """
    reward_correct: float = 0.0
    reward_team: float = 1.0
    reward_gain: float = 0.0
    """Reward of every seat for a wrong answer that became right; as much is lost by the reverse."""
