"""Where the games come from, and which of their replies are learned.

Scripts play on the spot, with a share of random actions that lead to positions where the script
alone would never be. Its own actions in them are learned, the random ones as a rule are not: that
is imitation on other states than the teacher's (DAgger, Ross et al. 2011), with random play in the
place of the student."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Observation, Policy, ScriptSeat, Setup, Task, is_held_out
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.recordings import read_recordings, recording_files
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.types import Episode, ReplyKind

SUITE = "train-warm-start"
"""A training suite: no start of an evaluation is among its starts."""


def starts_of(seed: int, num_games: int) -> range:
    """Return starts of `SUITE`; learning with another seed is learning from other games."""
    return range(seed * 1_000_000, seed * 1_000_000 + num_games)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPolicy:
    """Lets a script play, but draws a share of its actions evenly among the legal ones."""

    inner: Policy
    noise: float
    """That share; actions of free text are never drawn."""

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.inner.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> ScriptSeat:
        """Return a fresh seat."""
        inner = self.inner.seat(player, task=task, game=game)
        flags = _flags(self.noise, player, task.split, task.seed, game)

        def choose(seen: Observation, rng: random.Random) -> str:
            action = inner.act(seen)
            return rng.choice(seen.legal() or (action,)) if next(flags) else action

        key = "warm-start noise move", player, task.split, task.seed, game
        return ScriptSeat(choose, random.Random(repr(key)))


def _flags(noise: float, player: int, suite: str, seed: int, game: int) -> Iterator[bool]:
    """Yield for each turn of a player whether its action is drawn."""
    rng = random.Random(repr(("warm-start noise", player, suite, seed, game)))
    return (rng.random() < noise for _ in repeat(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Games of scripts that play on the spot, and recorded games; and which of their replies are
    learned.
    """

    lineups: tuple[str, ...] = ()
    """Scripts, each for `num_tasks` games."""
    paths: tuple[Path, ...] = ()
    """Recorded games: a run (its newest recorded step), a folder or a file each."""
    num_tasks: int
    noise: float
    """Share of random actions of scripts."""
    learn_noise: bool = False
    """Learn the random actions too, so that the student now and then tries every legal one."""
    min_score: float | None = None
    """Lowest figure of a game by which players are compared, see `EnvSpec.score`; a return is the
    player's own.
    """
    who: str | None = None
    """Learn only what this seat word said, e.g. "iggi", "player_0" (at any version) or
    "player_0@7".
    """

    def describe(self) -> list[str]:
        """Return each source as one text, for records."""
        noise = f"{self.noise:g} of the actions random{' and learned' if self.learn_noise else ''}"
        return [
            *(f"{text}: {self.num_tasks} tasks, {noise}" for text in self.lineups),
            *map(str, self.paths),
        ]

    def samples(
        self, encoder: Encoder, *, seed: int, say: Callable[[str], None]
    ) -> Iterator[list[Sample]]:
        """Yield what there is to learn in each game; `say` receives what should be known of
        recorded games.

        Raises:
            SettingsError: A source that cannot be used.
        """
        for game, is_own in self._games(encoder.setup, seed, say):
            chosen = self.taught(game.episode, encoder.setup.spec.score)
            if not any(chosen):
                encoder.counts["left out"] += 1
                yield []
            else:
                yield encoder.samples(
                    game, [own and one for own, one in zip(is_own, chosen, strict=True)]
                )

    def taught(self, episode: Episode, score: str) -> tuple[bool, ...]:
        """Return for each turn whether its reply is learned, by `EnvSpec.score`; an illegal one is
        only read.
        """
        players = range(episode.num_players)
        figures = [
            episode.reward(player) if score == "return" else episode.result[score]
            for player in players
        ]
        is_chosen = [
            (self.min_score is None or figure >= self.min_score)
            and self.who in (None, seat, seat.split("@")[0])
            for figure, seat in zip(figures, episode.seats or [""] * len(players), strict=True)
        ]
        return tuple(
            is_chosen[turn.player] and turn.kind is ReplyKind.LEGAL for turn in episode.turns
        )

    def _games(
        self, setup: Setup[Any], seed: int, say: Callable[[str], None]
    ) -> Iterator[tuple[Recording, Sequence[bool]]]:
        """Yield each game, and for each of its turns whether it is no random action or one that is
        learned.
        """
        for text in self.lineups:
            lineup = parse_lineup(text, setup.spec.num_players, env=setup.env)
            if lineup.needs_server:
                raise SettingsError(
                    f"{text!r}: only scripts play on the spot. Record such games first with "
                    "hanabi-grpo collect "
                    f"{text} --out GAMES, then learn from them with --games GAMES."
                )
            scripts = [
                NoisyPolicy(inner=make_script(setup, word).policy, noise=self.noise)
                for word in lineup.specs
            ]
            for number, start in enumerate(starts_of(seed, self.num_tasks)):
                episode = play_scripts(setup.task(SUITE, start), dict(enumerate(scripts)))
                flags = [
                    _flags(self.noise, player, SUITE, start, 0) for player in range(len(scripts))
                ]
                is_own = [
                    not next(flags[turn.player]) or self.learn_noise for turn in episode.turns
                ]
                yield Recording(episode=episode, source=text, number=number), is_own
        suites: set[str] = set()
        for file in (file for path in self.paths for file in recording_files(path)):
            recordings, notes = read_recordings([file])
            for note in notes:
                say(note)
            for recording in recordings:
                suites.add(recording.episode.suite)
                yield recording, [True] * len(recording.episode.turns)
        if spoiled := sorted(filter(is_held_out, suites)):
            say(
                f"suite {', '.join(spoiled)} is held out; learning from it spoils evaluations on "
                "it."
            )
