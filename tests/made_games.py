"""Turns and episodes that are written down, not played; a test names what it is about, the rest is plain."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

PLAIN = Episode(
    preset="laptop",
    spec_hash="x",
    num_players=2,
    suite="train",
    seed=0,
    status=EpisodeStatus.FINISHED,
    score=0,
    score_kept=0,
)
"""No board has this hash, so that nothing can replay it."""


def made_turn(
    player: int = 0,
    *ids: int,
    rewards: Mapping[str, float] | None = None,
    logprobs: float | tuple[float, ...] = -0.5,
    prompt_ids: tuple[int, ...] = (),
    text: str = "Play 0",
    kind: ReplyKind | None = None,
    version: int | None = None,
) -> Turn:
    """Return one player's turn whose reply is `ids`; without ids it is a script's.

    `logprobs` are one number for all ids or a number for each, in nats. Without `kind` a turn is illegal where it has
    the reward part "illegal", and legal elsewhere.
    """
    rewards = rewards or {}
    return Turn(
        player=player,
        prompt="",
        reply=text,
        action=text,
        kind=kind or (ReplyKind.ILLEGAL if "illegal" in rewards else ReplyKind.LEGAL),
        rewards=rewards,
        prompt_ids=prompt_ids,
        reply_ids=ids,
        logprobs=logprobs if isinstance(logprobs, tuple) else (logprobs,) * len(ids),
        version=version,
    )


def made_episode(*turns: Turn, score: int = 0, **other: Any) -> Episode:
    """Return a game of these turns; `other` are fields of `Episode`. The kept score is the score unless it is given."""
    return replace(PLAIN, turns=turns, score=score, **{"score_kept": score, **other})
