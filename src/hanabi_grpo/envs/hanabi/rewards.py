"""Named, weighted reward parts of one move.

Team parts (`types.TEAM_PARTS`) go to every player, the others to the mover. Over a game the team parts add up
to `score weight x OpenSpiel's return` under the bomb rule "zero" and to `score weight x points kept` under "keep".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hanabi_grpo.types import Episode, ReplyKind, Turn

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


def with_full_conversation(turns: Sequence[Turn], player: int, weights: RewardWeights) -> tuple[Turn, ...]:
    """Return the turns of a game that ended because a player's next reply might not fit its conversation.

    The team keeps its points, so without a price talking until the context is full would be a safe way out of a game
    that may still be bombed. The part "out_of_tokens" stands in the player's last turn, whose reply took the room; a
    player without a turn has none.

    Args:
        turns: Of the game, so far.
        player: Whose conversation is full.
        weights: What each part is worth.
    """
    last = max((place for place, turn in enumerate(turns) if turn.player == player), default=None)
    return tuple(
        replace(turn, rewards={**turn.rewards, "out_of_tokens": weights.out_of_tokens}) if place == last else turn
        for place, turn in enumerate(turns)
    )


def with_length_penalty(episode: Episode, *, per_token: float, free: int) -> Episode:
    """Return a game in which long replies cost their mover something: the part "length" of a turn's rewards.

    It is −per_token × (tokens of the reply − free) for a turn with more than `free` sampled tokens, closing tokens
    included; other turns have no such part. The trainer adds it, since games are played in text.

    Args:
        episode: As it was played.
        per_token: Not negative; 0 returns the game as it is.
        free: Tokens that cost nothing.
    """
    if not per_token or all(len(turn.reply_ids) <= free for turn in episode.turns):
        return episode

    def priced(turn: Turn) -> Turn:
        beyond = len(turn.reply_ids) - free
        return replace(turn, rewards={**turn.rewards, "length": -per_token * beyond}) if beyond > 0 else turn

    return replace(episode, turns=tuple(map(priced, episode.turns)))
