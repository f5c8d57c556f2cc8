"""Which counters there are, and where each one lies in a row of whole numbers.

Every counter is a whole number, so that sums do not depend on the order in which games arrive.
"""

import functools
from dataclasses import dataclass
from enum import IntEnum

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, COLOR_NAMES, GameSpec

MICRO = 1_000_000
"""Bits and chances are summed in millionths."""


class GameCount(IntEnum):
    """Counters of the team."""

    GAMES = 0
    UNFINISHED = 1
    BOMBS = 2
    SCORE = 3
    SCORE_KEPT = 4


class SeatCount(IntEnum):
    """Counters of one seat's own moves."""

    TURNS = 0
    PLAYS = 1
    MISPLAYS = 2
    DISCARDS = 3
    CRITICAL_DISCARDS = 4
    HINTS = 5
    WASTED_HINTS = 6
    CERTAIN_PLAYS = 7
    MICROBITS = 8
    """Information from hints about the cards played, in millionths of a bit."""
    MICROCHANCE = 9
    """Chance that the cards played fit, as far as the player could know, in millionths."""
    UNHINTED_TURNS = 10
    """Turns without a hint to this seat since its turn before."""
    UNHINTED_PLAYS = 11
    PLAYS_NONE = 12
    """Plays by what hints had told about the card: neither attribute, its colour, its rank, both; in this order."""
    PLAYS_COLOR = 13
    PLAYS_RANK = 14
    PLAYS_BOTH = 15
    MISPLAYS_NONE = 16
    MISPLAYS_COLOR = 17
    MISPLAYS_RANK = 18
    MISPLAYS_BOTH = 19


class HintCount(IntEnum):
    """Counters of one kind of hint to one seat, and of what that seat does on its next turn."""

    HINTS = 0
    TOUCHED = 1
    """Cards touched."""
    TOUCHED_PLAYABLE = 2
    """Touched cards that fitted when the hint was given."""
    ANSWERED = 3
    """Hints after which the seat had a turn."""
    PLAYS = 4
    DISCARDS = 5
    HINTS_BACK = 6
    """The seat gave a hint itself."""
    PLAYS_TOUCHED = 7
    PLAYS_TOUCHED_SCORED = 8
    CHOICES = 9
    """Plays of a touched card after a hint that touched at least two, so that there was a choice."""
    OLDEST = 10
    NEWEST = 11
    DISCARDS_TOUCHED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the counters of a board lie: team, seats, pairs of moves, hints."""

    num_players: int
    num_actions: int
    """Classes of moves: play and discard of each slot, then each colour and rank to each following seat."""
    num_values: int
    """Kinds of hints: colours, then ranks."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each group of counters, in their order.

        `pairs` is [seat, its move, move of the seat after it]; `hints` is [receiver, kind of hint, counter].
        """
        return {
            "games": (len(GameCount),),
            "seats": (self.num_players, len(SeatCount)),
            "pairs": (self.num_players, self.num_actions, self.num_actions),
            "hints": (self.num_players, self.num_values, len(HintCount)),
        }

    @property
    def seats_start(self) -> int:
        """Index of the first counter of `seats`."""
        return len(GameCount)

    @property
    def pairs_start(self) -> int:
        """Index of the first counter of `pairs`."""
        return self.seats_start + self.num_players * len(SeatCount)

    @property
    def hints_start(self) -> int:
        """Index of the first counter of `hints`."""
        return self.pairs_start + self.num_players * self.num_actions**2

    @property
    def size(self) -> int:
        """Number of counters."""
        return self.hints_start + self.num_players * self.num_values * len(HintCount)


@functools.lru_cache(maxsize=64)
def layout_of(spec: GameSpec) -> Layout:
    """Return where the counters of a board lie."""
    num_values = spec.num_colors + spec.num_ranks
    num_actions = 2 * spec.hand_size + (spec.num_players - 1) * num_values
    return Layout(num_players=spec.num_players, num_actions=num_actions, num_values=num_values)


def action_labels(spec: GameSpec) -> tuple[tuple[str, str], ...]:
    """Return a short and a long name of each class of moves.

    With two players a hint needs no target; else `+1` is the seat after the mover.
    """
    slots = range(spec.hand_size)
    labels = [(f"P{slot}", f"play card {slot}") for slot in slots]
    labels += [(f"D{slot}", f"discard card {slot}") for slot in slots]
    for step in range(1, spec.num_players):
        short, long = ("", "hint") if spec.num_players == 2 else (f"+{step} ", f"hint to seat +{step}:")
        labels += [(f"{short}{value}", f"{long} {name}") for value, name in hint_labels(spec)]
    return tuple(labels)


def hint_labels(spec: GameSpec) -> tuple[tuple[str, str], ...]:
    """Return a short and a long name of each kind of hint: colours, then ranks."""
    colors = [(COLOR_LETTERS[color], COLOR_NAMES[color]) for color in range(spec.num_colors)]
    return (*colors, *((str(rank + 1), f"rank {rank + 1}") for rank in range(spec.num_ranks)))
