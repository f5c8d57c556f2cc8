"""The seconds of one step: games on the servers by discrete events, pushes and learning by formulas.

A game is one sequence at a time: a turn's reply follows the one before. An engine with c sequences at once makes
peak · c / (c + half) tokens a second, so a token of each sequence takes (c + half) / peak: a fixed part and a part for
each sequence. Prompts, queues, lost servers and the network's delay are not in the model; what prompts cost is in the
calibrated speeds, as far as they are as long as those of the calibrated run.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import log2
from typing import Any

_SAMPLED_STEPS = 5
_LAPTOP = "measured: two CPU cores, the tiny model, median of a run of 300 steps on the board laptop"


def _assumed(value: float, meaning: str, source: str) -> Any:
    return field(default=value, metadata={"meaning": meaning, "source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the model takes for granted, each with its meaning and source."""

    engine_peak: float = _assumed(1554.0, "reply tokens/s of one GPU (or CPU engine) with very many sequences", _LAPTOP)
    engine_half: float = _assumed(
        44.0,
        "sequences at once with which an engine reaches half of its peak",
        "measured: two runs of 128 and 256 games",
    )
    gpu_gain: float = _assumed(0.8, "share of its double speed that an engine keeps at each doubling", "judgement")
    train_speed: float = _assumed(839.0, "reply tokens/s that one rank learns from, forward and backward", _LAPTOP)
    train_fixed: float = _assumed(0.0, "seconds of an update for each player, whatever its tokens", "judgement")
    rank_gain: float = _assumed(0.9, "share of its double speed that learning keeps at each doubling", "judgement")
    push_seconds: float = _assumed(0.046, "seconds of a push without the adapters' way", _LAPTOP)
    adapter_mb: float = _assumed(0.0, "MB of one adapter", "judgement: the tiny model's is next to nothing")
    link_mb: float = _assumed(1000.0, "MB/s of the trainer's network, shared by all servers", "judgement: 10 Gbit/s")
    length_spread: float = _assumed(0.2, "standard deviation of a game's turns, as a share of them", "judgement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One step: `games` of each deal, `turns` of a game (all players together), `reply_tokens` of a turn."""

    deals: int = 8
    games: int = 16
    players: int = 2
    turns: float = 6.0
    reply_tokens: float = 3.0
    updates: int = 1
    """HANABI_UPDATES_PER_STEP: each goes over all tokens."""
    games_at_once: int = 256
    """Of one server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Servers, GPUs of each (tensor × data parallel size), trainer processes."""

    servers: int = 1
    gpus: int = 1
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of a step and its parts."""

    push: float
    rollout: float
    train: float

    @property
    def plain(self) -> float:
        """HANABI_OVERLAP=0: one part after the other."""
        return self.push + self.rollout + self.train

    @property
    def overlapped(self) -> float:
        """HANABI_OVERLAP=1: the next games are played beside learning and the next push."""
        return max(self.rollout, self.push + self.train)


def step_times(work: Work, layout: Layout, assumed: Assumptions) -> StepTimes:
    """Return the seconds of a step; of games the mean of a few steps, sampled with a fixed seed."""
    chance = random.Random(0)
    peak = assumed.engine_peak * _gain(layout.gpus, assumed.gpu_gain)
    rollout = 0.0
    for _ in range(_SAMPLED_STEPS):
        shares: list[list[float]] = [[] for _ in range(layout.servers)]
        for deal in range(work.deals):
            turns = [chance.gauss(work.turns, assumed.length_spread * work.turns) for _ in range(work.games)]
            # Whole deals, in turn, as `fleet.share_deals` gives out deals of one board.
            shares[deal % layout.servers] += [work.reply_tokens * max(1.0, one) for one in turns]
        engine = partial(rollout_seconds, slots=work.games_at_once, peak=peak, half=assumed.engine_half)
        rollout += max(map(engine, shares)) / _SAMPLED_STEPS
    speed = assumed.train_speed * _gain(layout.ranks, assumed.rank_gain)
    tokens = work.deals * work.games * work.turns * work.reply_tokens
    return StepTimes(
        push=assumed.push_seconds + work.players * layout.servers * assumed.adapter_mb / assumed.link_mb,
        rollout=rollout,
        train=work.updates * (tokens / speed + work.players * assumed.train_fixed),
    )


def rollout_seconds(lengths: Sequence[float], *, slots: int, peak: float, half: float) -> float:
    """Return when an engine has ended its last game.

    Args:
        lengths: Tokens of each game, in the order in which they start.
        slots: Games in play at once.
        peak: Tokens a second with very many sequences.
        half: Sequences with which it reaches half of that.
    """
    waiting, playing = deque(lengths), list[float]()
    seconds = made = 0.0
    while waiting or playing:
        while waiting and len(playing) < slots:
            heappush(playing, made + waiting.popleft())
        # Until the next game ends all sequences advance alike.
        active = len(playing)
        end = heappop(playing)
        seconds += (end - made) * (active + half) / peak
        made = end
    return seconds


def _gain(number: int, kept: float) -> float:
    return float(number * kept ** log2(number))
