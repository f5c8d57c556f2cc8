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
    """Source of problems: generated sums, files of questions and answers, or reasoning-gym."""
    verify: Literal["text", "math"] = Field(
        default="text",
        # By default, hashes stay as they were before this setting existed.
        exclude_if="text".__eq__,
    )
    """When an answer counts as right: if it is the same text or number (text), or also if it has
    the same value according to the package math-verify (math)."""
    chain_terms: int = Field(default=3, ge=2, le=20)
    """Number of terms of a chain sum."""
    chain_highest: int = Field(default=4, ge=1, le=10**9)
    """Largest term of a chain sum; the smallest is 0."""
    show: Literal["reply", "answer"] = "reply"
    """What players see of others: full replies without their thoughts, or only the answers."""
    reward_correct: float = 1.0
    """Reward of a seat if its own last answer is right."""
    reward_team: float = 0.0
    """Reward of every seat if the team's answer is right."""
    tools: str | None = Field(
        default=NO_TOOLS,
        # Without tools, hashes stay as they were before this setting existed.
        exclude_if=_is_no_tools,
        json_schema_extra={"allowed": TOOLS_ALLOWED},
    )
    """Tools that players may call before they answer: none, or calculator."""


class VoteConfig(WorkflowConfig):
    """All seats answer simultaneously; the majority decides."""

    players: int = Field(default=3, ge=1, le=MAX_PLAYERS)
    """Number of players."""
    reward_difference: float = 0.0
    """Reward for a seat's contribution: value of the majority answer with it minus without it."""


class DebateConfig(VoteConfig):
    """All seats answer in rounds; from the second round on, they see the others' last replies."""

    players: int = Field(default=2, ge=2, le=MAX_PLAYERS)
    """Number of players."""
    rounds: int = Field(default=2, ge=1, le=8)
    """Number of rounds of a debate."""
    reward_correct: float = 0.0
    reward_later_rounds: float = 1.0
    """Reward of each round: the seat's own answer, plus the discounted mean correctness of all
    answers in later rounds, as in MAPoRL.
    """


class SummaryConfig(WorkflowConfig):
    """The last seat answers for the team, based on the answers of the others."""

    players: int = Field(default=3, ge=2, le=MAX_PLAYERS)
    """Number of players; the last one writes the final answer."""
    reward_correct: float = 0.5
    reward_team: float = 0.5


class PioneerObserverConfig(WorkflowConfig):
    """The pioneer answers, then the observer, who sees the pioneer's reply."""

    reward_correct: float = 0.0
    reward_sum: float = 1.0
    """Reward of both players for each right answer, as in CORY."""


class ReviseConfig(WorkflowConfig):
    """One seat answers several times and sees its last answer."""

    rounds: int = Field(default=2, ge=1, le=8)
    """Maximum number of answers to a problem."""
    feedback: Literal["none", "verdict", "comment"] = "none"
    """Feedback on the last answer: nothing (none), that it was wrong (verdict; a right answer ends
    the episode), or a comment by a second seat, the critic (comment).
    """
    reward_correct: float = 0.0
    reward_team: float = 1.0
    reward_gain: float = 0.0
    """Reward of every seat when a wrong answer becomes right; the reverse costs the same."""
