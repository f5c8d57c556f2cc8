"""Games of scripts to learn from, with a share of random moves.

A random move leads to positions that the script alone would never be in. The script's own moves in them are learned,
the random ones are not: that is imitation on other states than the teacher's (DAgger, Ross et al. 2011), with random
play in the place of the student.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from hanabi_grpo.envs.base import Observation, Policy, Seat, Setup, Task
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import LineUp
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.rollout.players import ScriptedPlayer, make_script
from hanabi_grpo.types import Episode

SUITE = "train-warm-start"
"""A training suite: no deal of an evaluation is among its deals."""
_FLAGS, _MOVES = "warm-start noise", "warm-start noise move"
_CHUNK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPolicy:
    """Lets a script play, but draws a share of its moves evenly among the legal ones."""

    inner: Policy
    noise: float
    """That share, from 0 to below 1."""

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.inner.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "NoisySeat":
        """Return a fresh seat."""
        return NoisySeat(
            inner=self.inner.seat(player, task=task, game=game),
            is_noise=_flags(self.noise, player, task.split, task.seed, game),
            rng=_rng(_MOVES, player, task.split, task.seed, game),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySeat:
    """One seat of `NoisyPolicy`."""

    inner: Seat
    is_noise: Iterator[bool]
    rng: random.Random

    def act(self, seen: Observation) -> str:
        """Return the script's action, or a random one."""
        action = self.inner.act(seen)
        return self.rng.choice(seen.legal() or (action,)) if next(self.is_noise) else action


def noisy_turns(episode: Episode, noise: float) -> tuple[bool, ...]:
    """Return for each turn of a game of `NoisyPolicy` whether its move was drawn."""
    flags = [_flags(noise, player, episode.suite, episode.seed, episode.game) for player in range(episode.num_players)]
    return tuple(next(flags[turn.player]) for turn in episode.turns)


def teacher_games(
    line_up: LineUp, config: EnvConfig, *, noise: float, seeds: Sequence[int]
) -> Iterator[tuple[Episode, tuple[bool, ...]]]:
    """Play one game of each deal; yields it and for each turn whether it is to be learned.

    Args:
        line_up: Scripts; each stays in its seat.
        config: The game.
        noise: Share of random moves.
        seeds: Deals of `SUITE`.

    Raises:
        SettingsError: A model would have to play, or `noise` is out of range.
    """
    if line_up.needs_server:
        raise SettingsError(
            f"{line_up.text!r}: only scripts play on the spot. Record such games first with hanabi-grpo collect "
            f"{line_up.text} --out GAMES, then learn from them with --games GAMES."
        )
    if not 0 <= noise < 1:
        raise SettingsError(f"--noise {noise}: a share of moves, from 0 to below 1.")
    scripts = [make_script(Setup(HANABI, config), word).policy for word in line_up.words]
    policies = [ScriptedPlayer(NoisyPolicy(inner=script, noise=noise)) for script in scripts]
    for start in range(0, len(seeds), _CHUNK):
        for episode in play_episodes_sync(Setup(HANABI, config), policies, SUITE, seeds[start : start + _CHUNK]):
            yield episode, tuple(not drawn for drawn in noisy_turns(episode, noise))


def _flags(noise: float, player: int, suite: str, seed: int, game: int) -> Iterator[bool]:
    rng = _rng(_FLAGS, player, suite, seed, game)
    return (rng.random() < noise for _ in repeat(None))


def _rng(name: str, player: int, suite: str, seed: int, game: int) -> random.Random:
    return random.Random(repr((name, player, suite, seed, game)))
