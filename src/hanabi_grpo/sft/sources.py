"""The sources of games, and which of their replies are learned.

Scripts play during the warm start, with a share of random actions that lead to positions which the
script alone would never reach. The script's own actions there are learned; by default, the random
ones are not. This is imitation on states beyond the teacher's own (DAgger, Ross et al. 2011), with
random play instead of the student.
"""

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from hanabi_grpo.sft.game_workers import samples_of_lineup
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.types import ReplyKind

SUITE = "train-warm-start"
"""A training suite: its starts include none of an evaluation's."""
_STARTS_OF_A_SEED = 1_000_000


def starts_of(seed: int, num_games: int) -> range:
    """Return starts of `SUITE`; a different seed means different games."""
    first = seed * _STARTS_OF_A_SEED
    return range(first, first + num_games)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyPolicy:
    """Plays as a script, but draws a share of its actions uniformly from the legal ones."""

    inner: Policy
    """The script."""
    noise: float
    """The share of random actions; actions of free text are never drawn."""

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
            is_random = next(flags)
            if not is_random:
                return action
            return rng.choice(seen.legal() or (action,))

        key = ("warm-start noise move", player, task.split, task.seed, game)
        return ScriptSeat(choose, random.Random(repr(key)))


def _flags(noise: float, player: int, suite: str, seed: int, game: int) -> Iterator[bool]:
    """Yield, for each turn of a player, whether its action is random.

    The same arguments give the same flags, so the task determines which actions were random.

    Args:
        noise: Share of random actions.
        player: The player.
        suite: Suite of the task.
        seed: Number of the task.
        game: Number of the game of this task.
    """
    rng = random.Random(repr(("warm-start noise", player, suite, seed, game)))
    while True:
        yield rng.random() < noise


@dataclass(frozen=True, slots=True, kw_only=True)
class LineupGames:
    """The games of one lineup of scripts, whose policies are made once for all of them."""

    spec: str
    """The lineup."""
    setup: Setup[Any]
    policies: Mapping[int, NoisyPolicy]
    """By player."""
    starts: range
    """The start of each task."""
    learn_noise: bool
    """See `Sources.learn_noise`."""

    def play(self, task: int) -> tuple[Recording, list[bool]]:
        """Play a game.

        Args:
            task: Its number.

        Returns:
            The game and, for each of its turns, whether its action may be learned.
        """
        start = self.starts[task]
        episode = play_scripts(self.setup.task(SUITE, start), self.policies)
        flags = []
        for player, policy in self.policies.items():
            flags.append(_flags(policy.noise, player, SUITE, start, 0))
        is_learnable = []
        for turn in episode.turns:
            is_random = next(flags[turn.player])
            is_learnable.append(not is_random or self.learn_noise)
        return Recording(episode=episode, source=self.spec, number=task), is_learnable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Games that scripts play during the warm start, recorded games, and which replies to learn."""

    lineups: tuple[str, ...] = ()
    """Lineups of scripts, each for `num_tasks` games."""
    paths: tuple[Path, ...] = ()
    """Recorded games: a run (its newest recorded step), a folder or a file each."""
    num_tasks: int
    noise: float
    """Share of the scripts' actions that are random."""
    learn_noise: bool = False
    """Also learn the random actions, so that the student occasionally tries every legal action."""
    min_score: float | None = None
    """Lowest score of a game to learn from, see `EnvSpec.score`; a return is the player's own."""
    who: str | None = None
    """Learn only replies of this policy: "iggi", "human", "player_0" (any version), "player_0@7";
    or of a person by the name in the record."""
    seats: tuple[int, ...] | None = None
    """Learn only the replies of these seats; None: of all seats."""

    def describe(self) -> list[str]:
        """Describe each source in a line, for records."""
        learned = " and learned" if self.learn_noise else ""
        noise = f"{self.noise:g} of the actions random{learned}"
        texts = [f"{lineup}: {self.num_tasks} tasks, {noise}" for lineup in self.lineups]
        return texts + [str(path) for path in self.paths]

    @property
    def num_script_games(self) -> int:
        """Number of games that scripts play; they come before the recorded ones."""
        return len(self.lineups) * self.num_tasks

    def script_key(self) -> dict[str, Any]:
        """Return, by name, everything that determines the learned replies of scripts' games."""
        return {
            "lineups": self.lineups,
            "tasks": self.num_tasks,
            "noise": self.noise,
            "learn_noise": self.learn_noise,
            "min_score": self.min_score,
            "who": self.who,
            "seats": self.seats,
        }

    def samples(
        self,
        encoder: Encoder,
        *,
        seed: int,
        say: Callable[[str], None],
        first_game: int = 0,
        num_workers: int = 1,
    ) -> Generator[list[Sample], None, None]:
        """Yield the samples of each game.

        Args:
            encoder: Encodes games as samples.
            seed: Seed of the scripts' games.
            say: Receives notes about recorded games.
            first_game: Scripts' games before this one are skipped.
            num_workers: Most processes that play scripts' games at once; the samples do not depend
                on it.

        Raises:
            SettingsError: A source cannot be used.
        """
        for number, lineup in enumerate(self.lineups):
            first_task = max(0, first_game - number * self.num_tasks)
            yield from samples_of_lineup(
                self,
                lineup,
                encoder,
                seed=seed,
                tasks=range(first_task, self.num_tasks),
                num_workers=num_workers,
            )
        for game in self._recorded_games(say):
            yield self.samples_of(game, [True] * len(game.episode.turns), encoder)

    def samples_of(
        self, game: Recording, is_learnable: Sequence[bool], encoder: Encoder
    ) -> list[Sample]:
        """Return the samples of a game.

        Args:
            game: The game.
            is_learnable: For each turn, whether its reply may be learned.
            encoder: Encodes the game.
        """
        is_chosen = self.taught(game, encoder.setup.spec.score)
        if not any(is_chosen):
            encoder.counts["left out"] += 1
            return []
        is_taught = []
        for learnable, chosen in zip(is_learnable, is_chosen, strict=True):
            is_taught.append(learnable and chosen)
        return encoder.samples(game, is_taught)

    def taught(self, recording: Recording, score: str) -> tuple[bool, ...]:
        """Return, for each turn, whether its reply is learned; illegal ones are only context.

        Args:
            recording: The game.
            score: The score that ranks players, see `EnvSpec.score`.
        """
        episode = recording.episode
        seats = episode.seats or [""] * episode.num_players
        names = recording.names or [""] * episode.num_players
        is_teacher = []
        for player, (seat, name) in enumerate(zip(seats, names, strict=True)):
            value = episode.reward(player) if score == "return" else episode.result[score]
            is_good = self.min_score is None or value >= self.min_score
            policy, _, _ = seat.partition("@")
            is_asked_for = self.who in (None, seat, policy, name)
            has_seat = self.seats is None or player in self.seats
            is_teacher.append(is_good and is_asked_for and has_seat)
        flags = []
        for turn in episode.turns:
            flags.append(is_teacher[turn.player] and turn.kind is ReplyKind.LEGAL)
        return tuple(flags)

    def lineup_games(self, spec: str, setup: Setup[Any], seed: int) -> "LineupGames":
        """Return the games of a lineup of scripts.

        Args:
            spec: The lineup.
            setup: The game.
            seed: Seed of the games.

        Raises:
            SettingsError: The lineup cannot be used.
        """
        lineup = parse_lineup(spec, setup.spec.num_players, env=setup.env)
        if lineup.needs_server:
            raise SettingsError(
                f"{spec!r}: only scripts can play here. Record such games first with "
                f"hanabi-grpo collect {spec} --out GAMES, then learn from them with --games GAMES."
            )
        policies = {}
        for player, name in enumerate(lineup.specs):
            script = make_script(setup, name).policy
            policies[player] = NoisyPolicy(inner=script, noise=self.noise)
        return LineupGames(
            spec=spec,
            setup=setup,
            policies=policies,
            starts=starts_of(seed, self.num_tasks),
            learn_noise=self.learn_noise,
        )

    def _recorded_games(self, say: Callable[[str], None]) -> Iterator[Recording]:
        """Yield the recorded games, and warn about held-out suites among them."""
        suites: set[str] = set()
        for path in self.paths:
            for file in recording_files(path):
                recordings, notes = read_recordings([file])
                for note in notes:
                    say(note)
                for recording in recordings:
                    suites.add(recording.episode.suite)
                    yield recording
        held_out = sorted(suite for suite in suites if is_held_out(suite))
        if held_out:
            say(
                f"suite {', '.join(held_out)} is held out; learning from it contaminates "
                "evaluations on it."
            )
