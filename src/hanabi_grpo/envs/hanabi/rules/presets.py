"""Boards: named parameter sets, checked completely before OpenSpiel sees them.

OpenSpiel aborts the whole interpreter on a bad number, so a `GameSpec` that exists is one that it
can load."""

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hanabi_grpo.errors import GameParameterError, did_you_mean

MAX_PLAYERS = MAX_COLORS = MAX_RANKS = 5
_RANGES = {
    "num_players": (2, MAX_PLAYERS, "Hanabi needs 2 to 5 players"),
    "num_colors": (1, MAX_COLORS, "a board has 1 to 5 colours"),
    "num_ranks": (1, MAX_RANKS, "a board has 1 to 5 ranks"),
    "hand_size": (
        1,
        8,
        "a hand holds 1 to 8 cards",
    ),  # OpenSpiel's masks of hinted cards are wrong in larger ones
    "max_hints": (0, 100, "allowed are 0 to 100 hint tokens"),
    "max_lives": (1, 100, "allowed are 1 to 100 lives"),
}
_FEW_DECKS = 1_000_000
"""A board with fewer different decks deals all of them, see `deals.shuffled_deck`: a run meets each
of them, or could learn which ones never come."""


def num_copies(rank: int, num_ranks: int) -> int:
    """Return how many cards of one colour carry `rank` (from 0): three 1s, one highest card, two of
    the rest.
    """
    return 3 if rank == 0 else 1 if rank == num_ranks - 1 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSpec:
    """The parameters of one board; every instance is playable, others raise
    `GameParameterError`.
    """

    preset: str
    num_players: int
    num_colors: int
    num_ranks: int
    hand_size: int
    max_hints: int
    max_lives: int
    halves_decks: bool = False
    """Deal half of the decks to training, however few there are: version 0.1 did, and its records
    name such decks.
    """

    def __post_init__(self) -> None:
        """Check every range; OpenSpiel would not raise but end the process."""
        for name in _RANGES:
            _check(name, getattr(self, name))
        needed = self.num_players * self.hand_size
        if needed > self.deck_size:
            most = self.deck_size // self.num_players
            step = (
                f"pass hand_size={most} or less"
                if most
                else "take fewer players, or more colours or ranks"
            )
            raise GameParameterError(
                f"hand_size={self.hand_size}: {self.num_players} players would need {needed} "
                "cards, the "
                f"{self.num_colors}x{self.num_ranks} deck has {self.deck_size}; {step}."
            )

    @property
    def max_score(self) -> int:
        """Points of a complete board."""
        return self.num_colors * self.num_ranks

    @property
    def deck_size(self) -> int:
        """Number of cards before the deal."""
        return self.num_colors * sum(
            num_copies(rank, self.num_ranks) for rank in range(self.num_ranks)
        )

    @property
    def deals_all_decks(self) -> bool:
        """Whether training and evaluation draw from all decks of the board, because they are
        few.
        """
        return num_decks(self.num_colors, self.num_ranks) < _FEW_DECKS and not self.halves_decks

    @property
    def reachable_max(self) -> int:
        """Most points that the number of plays allows: one per draw, then one for each player."""
        return min(
            self.max_score, self.deck_size - self.num_players * self.hand_size + self.num_players
        )

    @property
    def max_turns(self) -> int:
        """A bound that no legal game exceeds.

        Every undealt card is drawn after one play or discard and can pay back one hint, a complete
        colour pays back one more, and after the last draw each player moves once."""
        undealt = self.deck_size - self.num_players * self.hand_size
        return 2 * undealt + self.num_players + self.max_hints + self.num_colors

    @property
    def hash(self) -> str:
        """Twelve hex digits that name rules and deals: equal for equal parameters, whatever the
        preset is called.
        """
        return self._hash(" decks=all" if self.deals_all_decks else "")

    @property
    def rules_hash(self) -> str:
        """Twelve hex digits that name the rules alone, as version 0.1 wrote for `hash`."""
        return self._hash("")

    def _hash(self, deals: str) -> str:
        rules = (
            f"players={self.num_players} colors={self.num_colors} ranks={self.num_ranks} "
            f"hand={self.hand_size} hints={self.max_hints} lives={self.max_lives}{deals}"
        )
        return hashlib.sha256(rules.encode()).hexdigest()[:12]

    @property
    def openspiel_parameters(self) -> dict[str, int | bool | str]:
        """Arguments of `pyspiel.load_game("hanabi", ...)`."""
        return {
            "players": self.num_players,
            "colors": self.num_colors,
            "ranks": self.num_ranks,
            "hand_size": self.hand_size,
            "max_information_tokens": self.max_hints,
            "max_life_tokens": self.max_lives,
            # A random first player breaks OpenSpiel's own replay; seats are rotated outside the
            # game.
            "random_start_player": False,
            "observation_type": "card_knowledge",
        }


@dataclass(frozen=True, slots=True)
class Preset:
    """A named board and the numbers of players that it is meant for."""

    num_colors: int
    num_ranks: int
    max_hints: int
    max_lives: int
    hand_sizes: Mapping[int, int] = field(hash=False)
    """Number of players, ascending, to cards in a hand; the first number is the default."""

    @property
    def players(self) -> tuple[int, ...]:
        """Allowed numbers of players."""
        return tuple(self.hand_sizes)


PRESETS: Mapping[str, Preset] = {
    # The boards of MARSHAL; of "marshal-simple" only 4 of 6 points can be reached.
    "marshal-mini": Preset(2, 2, 3, 3, {2: 3}),
    "marshal-simple": Preset(3, 2, 8, 3, {2: 5}),
    "marshal-full": Preset(3, 3, 8, 3, {2: 5}),
    # The demo's board: one life, so only communication scores.
    "laptop": Preset(2, 2, 3, 1, {2: 3}),
    # The largest hands with which every point can still be reached.
    "mini": Preset(2, 2, 3, 3, {2: 3, 3: 2, 4: 2, 5: 1}),
    "simple": Preset(3, 2, 8, 3, {2: 4, 3: 3, 4: 2, 5: 2}),
    "small": Preset(2, 5, 8, 3, {2: 6, 3: 4, 4: 3, 5: 3}),
    # The Hanabi Learning Environment's Hanabi-Small and Hanabi-Very-Small.
    "hle-small": Preset(2, 5, 3, 1, {2: 2}),
    "hle-very-small": Preset(1, 5, 3, 1, {2: 2}),
    # The real game.
    "full": Preset(5, 5, 8, 3, {2: 5, 3: 5, 4: 4, 5: 4}),
}


def make_spec(preset: str, num_players: int | None = None) -> GameSpec:
    """Return the checked parameters of a preset, by default for its smallest number of players.

    A GameParameterError: an unknown name, or a number of players that it is not for.
    """
    board = PRESETS.get(preset) if isinstance(preset, str) else None
    if board is None:
        known = f"known presets: {', '.join(PRESETS)}"
        raise GameParameterError(
            f"preset={preset!r}: no such board; {did_you_mean(preset, PRESETS)}{known}."
        )
    if num_players is None:
        num_players = board.players[0]
    _check("num_players", num_players)
    if num_players not in board.hand_sizes:
        fitting = [name for name, other in PRESETS.items() if num_players in other.hand_sizes]
        raise GameParameterError(
            f"num_players={num_players}: preset {preset!r} is for "
            f"{', '.join(map(str, board.players))} players; "
            f"boards for {num_players}: {', '.join(fitting)}."
        )
    return GameSpec(
        preset=preset,
        num_players=num_players,
        num_colors=board.num_colors,
        num_ranks=board.num_ranks,
        hand_size=board.hand_sizes[num_players],
        max_hints=board.max_hints,
        max_lives=board.max_lives,
    )


def recorded_spec(preset: str, num_players: int, board_hash: str) -> GameSpec | None:
    """Return the board that a record names; None where this version has no such board.

    Records of version 0.1 name boards with few decks by the hash of their rules, and deal half of
    the decks. What prompts work out stands behind a dash. Raises as `make_spec`."""
    spec, wanted = make_spec(preset, num_players), board_hash.partition("-")[0]
    return next(
        (one for one in (spec, replace(spec, halves_decks=True)) if one.hash == wanted), None
    )


_ATTAINED = {(2, 2, 2, 3, 3, 1): 3.87, (2, 2, 2, 3, 3, 3): 3.90}
"""Players, colours, ranks, cards in a hand, hints and lives of a board to what the best known
players score on it.

Means over all 1120 decks after 250 responses of `policies.best_response`; played move by move on
these rules: 3.869 with one life, 3.884 with three, 2000 deals each, ± .008. """


def attainable(spec: GameSpec) -> float | None:
    """Return the mean score of the best known players of a board, see `_ATTAINED`; None where none
    is known.
    """
    key = (
        spec.num_players,
        spec.num_colors,
        spec.num_ranks,
        spec.hand_size,
        spec.max_hints,
        spec.max_lives,
    )
    return _ATTAINED.get(key)


@functools.cache  # asked for at every deal
def num_decks(num_colors: int, num_ranks: int) -> int:
    """Return the number of different decks of a board: orders of the cards, equal cards
    exchanged.
    """
    copies = [num_copies(rank, num_ranks) for rank in range(num_ranks)] * num_colors
    return math.factorial(sum(copies)) // math.prod(map(math.factorial, copies))


def _check(name: str, value: object) -> None:
    low, high, rule = _RANGES[name]
    # bool is an int to Python but a mistake here; OpenSpiel raises on some types and aborts on
    # others.
    if type(value) is not int:
        raise GameParameterError(f"{name}={value!r}: {rule}; give a whole number.")
    if not low <= value <= high:
        raise GameParameterError(f"{name}={value}: {rule}.")
