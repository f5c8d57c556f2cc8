"""Turns and episodes that are written down, not played; a test names what it is about, the rest is
plain.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.rollout.loop import Player, play_episode
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

PLAIN = Episode(
    env="hanabi",
    preset="laptop",
    spec_hash="x",
    num_players=2,
    suite="train",
    seed=0,
    status=EpisodeStatus.FINISHED,
    result={"score": 0, "score_kept": 0, "bombed": 0},
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
    num_players: int = 2,
) -> Turn:
    """Return one player's turn whose reply is `ids`, of these logprobs in nats; without ids it is a
    script's.

    Of `rewards` everybody gets "score" and "bomb", and this player the others; with "illegal" the
    turn is illegal."""
    rewards = rewards or {}
    team = {part: value for part, value in rewards.items() if part in ("score", "bomb")}
    return Turn(
        player=player,
        step=0,
        prompt="",
        reply=text,
        action=text,
        kind=kind or (ReplyKind.ILLEGAL if "illegal" in rewards else ReplyKind.LEGAL),
        rewards=tuple(dict(rewards) if seat == player else team for seat in range(num_players)),
        prompt_ids=prompt_ids,
        reply_ids=ids,
        logprobs=logprobs if isinstance(logprobs, tuple) else (logprobs,) * len(ids),
        version=version,
    )


def made_episode(*turns: Turn, score: int = 0, **other: Any) -> Episode:
    """Return a game of these turns; `other` are fields of `Episode`. The kept score is the score
    unless it is given, as the number of bombs."""
    result = {
        "score": score,
        "score_kept": other.pop("score_kept", score),
        "bombed": other.pop("bombed", 0),
    }
    return replace(PLAIN, turns=turns, result=result, **other)


def play_episodes_sync(
    setup: Setup[Any], players: Sequence[Player], suite: str, seeds: Iterable[int]
) -> list[Episode]:
    """Play one game of each start, one after the other, outside a running event loop."""

    async def play_all() -> list[Episode]:
        return [await play_episode(setup.task(suite, seed), players) for seed in seeds]

    return asyncio.run(play_all())
