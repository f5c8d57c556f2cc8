"""Games of scripts to learn from, with a share of random moves.

A random move leads to positions that the script alone would never be in. The script's own moves in them are learned,
the random ones are not: that is imitation on other states than the teacher's (DAgger, Ross et al. 2011), with random
play in the place of the student.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import Policy, Seat, make_policy
from hanabi_grpo.envs.hanabi.policies.seats import seat_rng
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.rules import GameSpec, PlayerView, format_action
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import LineUp
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.types import Episode, Reply

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
    style: ObservationStyle

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.inner.name

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "NoisySeat":
        """Return a fresh seat."""
        return NoisySeat(
            inner=self.inner.seat(player, spec=spec, suite=suite, seed=seed, game=game),
            is_noise=_flags(self.noise, player, suite, seed, game),
            rng=seat_rng(_MOVES, player, suite, seed, game),
            style=self.style,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySeat:
    """One seat of `NoisyPolicy`."""

    inner: Seat
    is_noise: Iterator[bool]
    rng: random.Random
    style: ObservationStyle

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        """Return the script's reply, or a random move."""
        reply = await self.inner.reply(view, prompt)
        if not next(self.is_noise):
            return reply
        move = self.rng.choice(view.legal_actions)
        return Reply(text=format_action(move, style=self.style, num_players=view.num_players))


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
    style = ObservationStyle(config.observation)
    policies = [NoisyPolicy(inner=make_policy(word, style=style), noise=noise, style=style) for word in line_up.words]
    for start in range(0, len(seeds), _CHUNK):
        for episode in play_episodes_sync(config, policies, SUITE, seeds[start : start + _CHUNK]):
            yield episode, tuple(not drawn for drawn in noisy_turns(episode, noise))


def _flags(noise: float, player: int, suite: str, seed: int, game: int) -> Iterator[bool]:
    rng = seat_rng(_FLAGS, player, suite, seed, game)
    return (rng.random() < noise for _ in repeat(None))
