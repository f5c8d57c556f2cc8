"""Named, weighted reward parts of one move.

The parts `score` and `bomb` go to every player, the others to the mover. Over a game the former add up
to `score weight x OpenSpiel's return` under the bomb rule "zero" and to `score weight x points kept` under "keep".
"""

from dataclasses import dataclass
from typing import Literal

from hanabi_grpo.types import ReplyKind

BombRule = Literal["zero", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardWeights:
    """What each part is worth."""

    score: float = 1.0
    """Per card added to a firework."""
    illegal: float = -0.5
    """For a reply that is a move which the rules forbid here."""
    unparsable: float = -0.5
    """For a reply without a move."""
    out_of_tokens: float = -0.5
    """For the last reply of a player whose conversation is full, which ends the game."""
    bomb_rule: BombRule = "zero"
    """Whether losing the last life takes the points away again."""


def move_rewards(
    weights: RewardWeights, *, kind: ReplyKind, scored: bool, bombed: bool, score_kept: int
) -> dict[str, float]:
    """Return the weighted reward parts of one move; a part that did not happen is left out.

    Args:
        weights: What each part is worth.
        kind: What became of the reply.
        scored: The move that was applied added a card to a firework.
        bombed: It lost the last life.
        score_kept: Points on the table after the move.

    Example:
        A legal reply that scores gives {"score": 1.0}; a bomb at 3 points gives {"bomb": -3.0}.
    """
    parts: dict[str, float] = {}
    if scored:
        parts["score"] = weights.score
    if bombed and weights.bomb_rule == "zero" and score_kept:
        parts["bomb"] = -weights.score * score_kept
    if kind is ReplyKind.ILLEGAL:
        parts["illegal"] = weights.illegal
    if kind is ReplyKind.UNPARSABLE:
        parts["unparsable"] = weights.unparsable
    return parts
