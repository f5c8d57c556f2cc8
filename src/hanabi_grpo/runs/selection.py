"""Which games of a file are shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import ReplyKind, player_name

NUM_REPLAYS = 4
"""Games of a page that shows a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was asked for; without anything, every game. Choices that exclude each other are a SettingsError."""

    worst: int | None = None
    """This many games of the lowest returns of all players together."""
    best: int | None = None
    illegal: bool = False
    """Only games with a reply that was illegal or no move; with `player`, a reply of that player."""
    player: int | None = None
    """Only turns of this seat are shown."""
    game: int | None = None
    """Only the game of this number."""

    def __post_init__(self) -> None:
        """Check the choices."""
        given = {name: value for name in ("worst", "best", "game") if (value := getattr(self, name)) is not None}
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(f'--{name}' for name in given)}: choose one of them.")
        for name, value in given.items():
            if name != "game" and value < 1:
                raise SettingsError(f"--{name} {value}: how many games, at least 1.")

    @property
    def is_everything(self) -> bool:
        """True when no game is left out."""
        return self.worst is None and self.best is None and self.game is None and not self.illegal

    def apply(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Return the chosen games: by returns for `worst` and `best`, else in the order of the file."""
        chosen = list(recordings)
        if self.game is not None:
            chosen = [one for one in chosen if one.number == self.game]
            if not chosen:
                raise SettingsError(f"--game {self.game}: there are games 0 to {len(recordings) - 1}.")
        if self.player is not None and all(self.player >= one.episode.num_players for one in chosen):
            raise SettingsError(f"--player {player_name(self.player)}: no game here has that many players.")
        if self.illegal:
            chosen = [one for one in chosen if num_bad_replies(one, self.player)]
        if self.worst is not None or self.best is not None:
            chosen = sorted(chosen, key=_score, reverse=self.worst is None)[: self.worst or self.best]
        return chosen


def num_bad_replies(recording: Recording, player: int | None = None) -> int:
    """Return how many replies were no legal move, of one seat or of all."""
    turns = recording.episode.turns
    return sum(turn.kind is not ReplyKind.LEGAL for turn in turns if player is None or turn.player == player)


def _score(recording: Recording) -> float:
    episode = recording.episode
    return sum(episode.reward(player) for player in range(episode.num_players))


def spread(recordings: Sequence[Recording], number: int) -> list[Recording]:
    """Return this many games, evenly from the worst to the best: 3 of those that earned 0, 1, 1, 2, 4 are 0, 1, 4."""
    ranked = sorted(recordings, key=_score)
    if number < 2 or len(ranked) <= number:
        return ranked[-number:] if number else []
    return [ranked[round(place * (len(ranked) - 1) / (number - 1))] for place in range(number)]
