"""Where the games come from, which of them are learned, and the samples that they make."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.rules import is_held_out
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.teachers import teacher_games
from hanabi_grpo.types import Episode, ReplyKind

_SEEDS_APART = 1_000_000
"""Distance of two seeds' first deals, so that warm starts with other seeds learn from other games."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFilter:
    """Which games and replies are learned."""

    min_score: int | None = None
    """Lowest score of a game."""
    only_legal: bool = True
    """Whether replies that were no legal move are read but not learned."""
    who: str | None = None
    """Learn only what this seat word said, e.g. "iggi", "player_0" (at any version) or "player_0@7"."""

    def takes(self, episode: Episode) -> bool:
        """Tell whether a game is used."""
        return self.min_score is None or episode.score >= self.min_score

    def taught(self, episode: Episode) -> tuple[bool, ...]:
        """Return for each turn whether its reply is learned."""
        seats = dict(enumerate(episode.seats))
        return tuple(
            self._is_chosen(seats.get(turn.player, "")) and (turn.kind is ReplyKind.LEGAL or not self.only_legal)
            for turn in episode.turns
        )

    def _is_chosen(self, seat: str) -> bool:
        return self.who is None or self.who in (seat, seat.split("@")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Games of scripts that play on the spot, and recorded games."""

    line_ups: tuple[str, ...]
    """Scripts, each for `num_deals` games."""
    paths: tuple[Path, ...]
    """Recorded games: a run (its newest recorded step), a folder or a file each."""
    num_deals: int
    noise: float
    """Share of random moves of scripts."""
    chosen: GameFilter
    learn_noise: bool = False
    """Learn the random moves too, so that the student now and then tries every legal move."""

    def __post_init__(self) -> None:
        """Check that there is something to learn from.

        Raises:
            SettingsError: There is not.
        """
        if not self.line_ups and not self.paths:
            raise SettingsError(
                "warm-start: nothing to learn from; name scripts that play (hanabi-grpo warm-start iggi --out FOLDER), "
                "recorded games (--games FOLDER), or both."
            )

    @property
    def num_games(self) -> int | None:
        """How many games will be read; None where files say so only when they are read."""
        return None if self.paths else len(self.line_ups) * self.num_deals

    def describe(self) -> list[str]:
        """Return each source as one text, for records."""
        noise = f"{self.noise:g} of the moves random{' and learned' if self.learn_noise else ''}"
        played = [f"{text}: {self.num_deals} deals, {noise}" for text in self.line_ups]
        return [*played, *map(str, self.paths)]

    def samples(
        self,
        config: EnvConfig,
        encoder: Encoder,
        *,
        seed: int,
        notes: list[str],
        progress: Callable[[int], None] = lambda games: None,
    ) -> list[Sample]:
        """Return what there is to learn, in the order of the sources.

        Args:
            config: The game.
            encoder: Makes ids of it, and counts.
            seed: Chooses the deals of scripts.
            notes: Receives what should be known of recorded games.
            progress: Receives the number of games that were read.

        Raises:
            SettingsError: A source that cannot be used, or nothing is left to learn.
        """
        samples: list[Sample] = []
        for number, (recording, is_own) in enumerate(self._games(config, seed, notes)):
            if self.chosen.takes(recording.episode):
                chosen = self.chosen.taught(recording.episode)
                samples += encoder.samples(recording, [own and one for own, one in zip(is_own, chosen, strict=True)])
            else:
                encoder.counts.games_left_out += 1
            progress(number + 1)
        if not samples:
            raise SettingsError(
                f"warm-start: {encoder.counts.line()}: nothing is left to learn; loosen --min-score, --who or "
                "--only-legal, or give other games."
            )
        return samples

    def _games(self, config: EnvConfig, seed: int, notes: list[str]) -> Iterator[tuple[Recording, Sequence[bool]]]:
        """Yield each game, and for each of its turns whether it is no random move or one that is learned."""
        seeds = range(seed * _SEEDS_APART, seed * _SEEDS_APART + self.num_deals)
        for source, text in enumerate(self.line_ups):
            line_up = parse_line_up(text, config.players)
            for number, (episode, is_own) in enumerate(teacher_games(line_up, config, noise=self.noise, seeds=seeds)):
                recording = Recording(episode=episode, number=source * self.num_deals + number, source=text)
                yield recording, [own or self.learn_noise for own in is_own]
        for recording in _recorded_games(self.paths, notes):
            yield recording, [True] * len(recording.episode.turns)


def _recorded_games(paths: Sequence[Path], notes: list[str]) -> Iterator[Recording]:
    """Yield the games of some paths, a file at a time, and note what should be known of them."""
    suites: set[str] = set()
    for path in paths:
        for file in recording_files(path):
            recordings, found = read_recordings([file])
            notes += found
            suites |= {recording.episode.suite for recording in recordings}
            yield from recordings
    if spoiled := sorted(filter(is_held_out, suites)):
        notes.append(f"suite {', '.join(spoiled)} is held out; learning from it spoils evaluations on it.")
