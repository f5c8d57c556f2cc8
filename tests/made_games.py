"""Turns and episodes that are written down, not played.

A test names what it is about, the rest is plain.
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
_TEAM_PARTS = ("score", "bomb")
"""Parts of a reward that everybody gets."""


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
    """Return one player's turn.

    Args:
        player: Who moves.
        ids: Tokens of the reply; without any it is a script's.
        rewards: Parts of the reward: everybody gets "score" and "bomb", this player the others.
        logprobs: Log-probability of each token in nats, or one for all.
        prompt_ids: Tokens of the prompt.
        text: The reply, which is the action too.
        kind: Kind of the reply; None: illegal with a reward "illegal", else legal.
        version: Version of the adapter that played.
        num_players: Number of seats.
    """
    rewards = rewards or {}
    team_rewards = {part: value for part, value in rewards.items() if part in _TEAM_PARTS}
    rewards_of_seats = []
    for seat in range(num_players):
        rewards_of_seats.append(dict(rewards) if seat == player else team_rewards)
    if kind is None:
        kind = ReplyKind.ILLEGAL if "illegal" in rewards else ReplyKind.LEGAL
    if not isinstance(logprobs, tuple):
        logprobs = (logprobs,) * len(ids)
    return Turn(
        player=player,
        step=0,
        prompt="",
        reply=text,
        action=text,
        kind=kind,
        rewards=tuple(rewards_of_seats),
        prompt_ids=prompt_ids,
        reply_ids=ids,
        logprobs=logprobs,
        version=version,
    )


def made_episode(*turns: Turn, score: int = 0, **other: Any) -> Episode:
    """Return a game of these turns.

    Args:
        turns: The turns.
        score: The score; also the kept score unless that is given.
        **other: "score_kept", "bombed", and fields of `Episode`.
    """
    result = {
        "score": score,
        "score_kept": other.pop("score_kept", score),
        "bombed": other.pop("bombed", 0),
    }
    return replace(PLAIN, turns=turns, result=result, **other)


def play_episodes_sync(
    setup: Setup[Any], players: Sequence[Player], suite: str, seeds: Iterable[int]
) -> list[Episode]:
    """Play one game of each start, one after the other, outside a running event loop.

    Args:
        setup: Environment and configuration.
        players: Who plays, in turn order.
        suite: Suite of the tasks.
        seeds: The tasks.
    """

    async def play_all() -> list[Episode]:
        return [await play_episode(setup.task(suite, seed), players) for seed in seeds]

    return asyncio.run(play_all())
