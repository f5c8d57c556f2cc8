"""Where the games come from, which of them are learned, and the samples that they make."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.client.lineups import parse_line_up
from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.sft.encoding import Encoder, Replay
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.teachers import teacher_games
from hanabi_grpo.types import Episode, ReplyKind

SEEDS_APART = 1_000_000
"""Distance of two seeds' first starts, so that warm starts with other seeds learn from other games."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Games of scripts that play on the spot, and recorded games; and which of their replies are learned."""

    line_ups: tuple[str, ...] = ()
    """Scripts, each for `num_deals` games."""
    paths: tuple[Path, ...] = ()
    """Recorded games: a run (its newest recorded step), a folder or a file each."""
    num_deals: int
    noise: float
    """Share of random actions of scripts."""
    learn_noise: bool = False
    """Learn the random actions too, so that the student now and then tries every legal one."""
    min_score: float | None = None
    """Lowest figure of a game by which players are compared, see `EnvSpec.score`; a return is the player's own."""
    who: str | None = None
    """Learn only what this seat word said, e.g. "iggi", "player_0" (at any version) or "player_0@7"."""

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
        noise = f"{self.noise:g} of the actions random{' and learned' if self.learn_noise else ''}"
        return [*(f"{text}: {self.num_deals} deals, {noise}" for text in self.line_ups), *map(str, self.paths)]

    def samples(
        self, encoder: Encoder, *, seed: int, notes: list[str], progress: Callable[[int], None] = lambda games: None
    ) -> list[Sample]:
        """Return what there is to learn, in the order of the sources.

        Args:
            encoder: Makes ids of the games, and counts.
            seed: Chooses the starts of scripts' games.
            notes: Receives what should be known of recorded games.
            progress: Receives the number of games that were read.

        Raises:
            SettingsError: A source that cannot be used, or nothing is left to learn.
        """
        samples: list[Sample] = []
        for number, (replay, is_own) in enumerate(self._games(encoder, seed, notes)):
            chosen = self.taught(replay.episode, encoder.setup.spec.score)
            if any(chosen):
                samples += encoder.samples(replay, [own and one for own, one in zip(is_own, chosen, strict=True)])
            else:
                encoder.counts["left out"] += 1
            progress(number + 1)
        if not samples:
            raise SettingsError(
                f"warm-start: {encoder.line()}: nothing is left to learn; loosen --min-score or --who, or give "
                "other games."
            )
        return samples

    def taught(self, episode: Episode, score: str) -> tuple[bool, ...]:
        """Return for each turn whether its reply is learned; one that was no legal action is only read.

        Args:
            episode: A game.
            score: See `EnvSpec.score`.
        """
        figures = [
            episode.reward(player) if score == "return" else episode.result[score]
            for player in range(episode.num_players)
        ]
        is_chosen = [
            (self.min_score is None or figure >= self.min_score) and self.who in (None, seat, seat.split("@")[0])
            for figure, seat in zip(figures, episode.seats or [""] * episode.num_players, strict=True)
        ]
        return tuple(is_chosen[turn.player] and turn.kind is ReplyKind.LEGAL for turn in episode.turns)

    def _games(self, encoder: Encoder, seed: int, notes: list[str]) -> Iterator[tuple[Replay, Sequence[bool]]]:
        """Yield each game, and for each of its turns whether it is no random action or one that is learned."""
        seeds = range(seed * SEEDS_APART, seed * SEEDS_APART + self.num_deals)
        setup = encoder.setup
        for text in self.line_ups:
            line_up = parse_line_up(text, setup.spec.num_players, env=setup.env)
            games = teacher_games(line_up, setup, noise=self.noise, seeds=seeds)
            for number, (episode, is_own) in enumerate(games):
                replay = Replay.of(setup, episode, f"{text}, game {number}")
                yield replay, [own or self.learn_noise for own in is_own]
        suites: set[str] = set()
        for file in (file for path in self.paths for file in recording_files(path)):
            recordings, found = read_recordings([file])
            notes += found
            for recording in recordings:
                episode = recording.episode
                suites.add(episode.suite)
                game, start_id = setup.environment.recorded(setup.config, recording)
                yield (
                    Replay(episode=episode, game=game, start_id=start_id, where=recording.where),
                    [True] * len(episode.turns),
                )
        if spoiled := sorted(filter(is_held_out, suites)):
            notes.append(f"suite {', '.join(spoiled)} is held out; learning from it spoils evaluations on it.")
