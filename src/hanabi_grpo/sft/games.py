"""From the options of the command to samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.recorded import GameFilter, recorded_games
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.teachers import teacher_games

_SEEDS_APART = 1_000_000
"""Distance of two seeds' first deals, so that warm starts with other seeds learn from other games."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the games come from."""

    line_ups: tuple[str, ...]
    """Scripts that play on the spot, each `num_deals` games."""
    paths: tuple[Path, ...]
    """Recorded games."""
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
        done = 0

        def add(recording: Recording, is_taught: Sequence[bool]) -> None:
            nonlocal done
            if self.chosen.takes(recording.episode):
                samples.extend(encoder.samples(recording, is_taught))
            else:
                encoder.counts.games_left_out += 1
            done += 1
            progress(done)

        first = seed * _SEEDS_APART
        seeds = range(first, first + self.num_deals)
        for text in self.line_ups:
            for episode, is_own in teacher_games(
                parse_line_up(text, config.players), config, noise=self.noise, seeds=seeds
            ):
                chosen = self.chosen.taught(episode)
                taught = [(own or self.learn_noise) and one for own, one in zip(is_own, chosen, strict=True)]
                add(Recording(episode=episode, number=done, source=text), taught)
        for recording in recorded_games(list(self.paths), notes):
            add(recording, self.chosen.taught(recording.episode))
        if not samples:
            raise SettingsError(
                f"warm-start: {encoder.counts.line()}: nothing is left to learn; loosen --min-score, --who or "
                "--only-legal, or give other games."
            )
        return samples
