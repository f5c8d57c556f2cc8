"""Games of scripts to learn from, with a share of random actions.

A random action leads to positions that the script alone would never be in. The script's own actions in them are
learned, the random ones are not: that is imitation on other states than the teacher's (DAgger, Ross et al. 2011), with
random play in the place of the student.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from hanabi_grpo.client.lineups import LineUp
from hanabi_grpo.envs.base import Observation, Policy, Seat, Setup, Task
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.loop import make_script
from hanabi_grpo.types import Episode

SUITE = "train-warm-start"
"""A training suite: no start of an evaluation is among its starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPolicy:
    """Lets a script play, but draws a share of its actions evenly among the legal ones."""

    inner: Policy
    noise: float
    """That share, from 0 to below 1; actions of free text are never drawn."""

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.inner.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "NoisySeat":
        """Return a fresh seat."""
        inner = self.inner.seat(player, task=task, game=game)
        flags = _flags(self.noise, player, task.split, task.seed, game)
        rng = random.Random(repr(("warm-start noise move", player, task.split, task.seed, game)))
        return NoisySeat(inner=inner, is_noise=flags, rng=rng)


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
    """Return for each turn of an episode of `NoisyPolicy` whether its action was drawn."""
    flags = [_flags(noise, player, episode.suite, episode.seed, episode.game) for player in range(episode.num_players)]
    return tuple(next(flags[turn.player]) for turn in episode.turns)


def teacher_games(
    line_up: LineUp, setup: Setup[Any], *, noise: float, seeds: Sequence[int]
) -> Iterator[tuple[Episode, tuple[bool, ...]]]:
    """Play one episode of each start; yields it and for each turn whether it is to be learned.

    Args:
        line_up: Scripts; each stays in its seat.
        setup: What is played.
        noise: Share of random actions.
        seeds: Starts of `SUITE`.

    Raises:
        SettingsError: A model would have to play, or `noise` is out of range.
    """
    if line_up.needs_server:
        raise SettingsError(
            f"{line_up.text!r}: only scripts play on the spot. Record such games first with hanabi-grpo collect "
            f"{line_up.text} --out GAMES, then learn from them with --games GAMES."
        )
    if not 0 <= noise < 1:
        raise SettingsError(f"--noise {noise}: a share of actions, from 0 to below 1.")
    policies = {
        player: NoisyPolicy(inner=make_script(setup, word).policy, noise=noise)
        for player, word in enumerate(line_up.words)
    }
    for seed in seeds:
        episode = play_scripts(setup.task(SUITE, seed), policies)
        yield episode, tuple(not drawn for drawn in noisy_turns(episode, noise))


def _flags(noise: float, player: int, suite: str, seed: int, game: int) -> Iterator[bool]:
    rng = random.Random(repr(("warm-start noise", player, suite, seed, game)))
    return (rng.random() < noise for _ in repeat(None))
