"""Boards: named parameter sets, checked completely before OpenSpiel sees them.

OpenSpiel aborts the whole interpreter on invalid parameters, so every `GameSpec` instance is one
that it can load.
"""

import functools
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from hanabi_grpo.errors import GameParameterError, did_you_mean, shown

MAX_PLAYERS = 5
MAX_COLORS = 5
MAX_RANKS = 5

_FEW_DECKS = 1_000_000
"""A board with fewer different decks deals all of them, see `deals.shuffled_deck`.

A run sees each of them; otherwise it could learn which ones never occur."""

_HASH_DIGITS = 12

_FREE_BOARD = re.compile(
    r"(?P<num_colors>\d{1,3})x(?P<num_ranks>\d{1,3})-hand(?P<hand_size>\d{1,3})"
    r"-info(?P<max_hints>\d{1,3})-life(?P<max_lives>\d{1,3})",
    re.ASCII,
)
"""The name of a board that is not a preset: all its parameters except the number of players."""
_OFFICIAL_HAND = {2: 5, 3: 5, 4: 4, 5: 4}
"""Number of players to cards in a hand, by the official rules."""


@dataclass(frozen=True, slots=True)
class _Range:
    """The allowed values of one parameter."""

    low: int
    high: int
    rule: str
    """The rule in words, for error messages."""


_RANGES = {
    "num_players": _Range(2, MAX_PLAYERS, "Hanabi needs 2 to 5 players"),
    "num_colors": _Range(1, MAX_COLORS, "a board has 1 to 5 colours"),
    "num_ranks": _Range(1, MAX_RANKS, "a board has 1 to 5 ranks"),
    # OpenSpiel's masks of hinted cards are wrong in larger hands.
    "hand_size": _Range(1, 8, "a hand holds 1 to 8 cards"),
    "max_hints": _Range(0, 100, "a board has 0 to 100 hint tokens"),
    "max_lives": _Range(1, 100, "a board has 1 to 100 lives"),
}


def _check_range(name: str, value: object) -> None:
    allowed = _RANGES[name]
    # bool is an int to Python but a mistake here; OpenSpiel raises on some types and aborts on
    # others.
    if type(value) is not int:
        raise GameParameterError(f"{name}={value!r}: {allowed.rule}; give a whole number.")
    if not allowed.low <= value <= allowed.high:
        raise GameParameterError(f"{name}={value}: {allowed.rule}.")


def num_copies(rank: int, num_ranks: int) -> int:
    """Return how many cards of one colour carry a rank.

    Three lowest cards, one highest card, two of each other rank; three where the lowest is the
    highest.

    Args:
        rank: The rank, from 0.
        num_ranks: Ranks of the board.
    """
    if rank == 0:
        return 3
    if rank == num_ranks - 1:
        return 1
    return 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSpec:
    """The parameters of one board; every instance is playable.

    Raises:
        GameParameterError: On construction, where OpenSpiel could not play the board.
    """

    preset: str
    """Name of the board; it does not enter the hashes."""
    num_players: int
    """Players of the game."""
    num_colors: int
    """Colours of the deck."""
    num_ranks: int
    """Ranks of each colour."""
    hand_size: int
    """Cards in a hand."""
    max_hints: int
    """Hint tokens at the start, which is also the maximum."""
    max_lives: int
    """Lives at the start."""
    halves_decks: bool = False
    """Deal only half of the decks in training, even if there are few.

    Version 0.1 did so, and its records refer to such decks.
    """

    def __post_init__(self) -> None:
        """Check every range; OpenSpiel would not raise but end the process."""
        for name in _RANGES:
            _check_range(name, getattr(self, name))
        needed = self.num_players * self.hand_size
        if needed <= self.deck_size:
            return
        largest_hand = self.deck_size // self.num_players
        if largest_hand:
            advice = f"pass hand_size={largest_hand} or less"
        else:
            advice = "use fewer players, or more colours or ranks"
        raise GameParameterError(
            f"hand_size={self.hand_size}: {self.num_players} players need {needed} cards, but the "
            f"{self.num_colors}x{self.num_ranks} deck has {self.deck_size}; {advice}."
        )

    @property
    def max_score(self) -> int:
        """Points of a complete board."""
        return self.num_colors * self.num_ranks

    @property
    def deck_size(self) -> int:
        """Number of cards before the deal."""
        cards_per_color = sum(num_copies(rank, self.num_ranks) for rank in range(self.num_ranks))
        return self.num_colors * cards_per_color

    @property
    def deals_all_decks(self) -> bool:
        """Whether training and evaluation draw from all decks, because there are few."""
        if self.halves_decks:
            return False
        return num_decks(self.num_colors, self.num_ranks) < _FEW_DECKS

    @property
    def reachable_max(self) -> int:
        """Maximum score given the number of plays: one per draw, then one per player."""
        return min(self.max_score, self._num_undealt + self.num_players)

    @property
    def max_turns(self) -> int:
        """A bound that no legal game exceeds.

        Every undealt card is drawn after one play or discard and can return one hint token, a
        complete colour returns one more, and after the last draw each player moves once.
        """
        return 2 * self._num_undealt + self.num_players + self.max_hints + self.num_colors

    @property
    def _num_undealt(self) -> int:
        """Cards left in the deck after the deal."""
        return self.deck_size - self.num_players * self.hand_size

    @property
    def hash(self) -> str:
        """Twelve hex digits that identify rules and deals.

        Equal parameters give equal hashes, whatever the preset's name.
        """
        return self._hash(" decks=all" if self.deals_all_decks else "")

    @property
    def rules_hash(self) -> str:
        """Twelve hex digits that identify the rules alone, which version 0.1 wrote as `hash`."""
        return self._hash("")

    def _hash(self, deals: str) -> str:
        rules = (
            f"players={self.num_players} colors={self.num_colors} ranks={self.num_ranks} "
            f"hand={self.hand_size} hints={self.max_hints} lives={self.max_lives}{deals}"
        )
        return hashlib.sha256(rules.encode()).hexdigest()[:_HASH_DIGITS]

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
    """A named board and the numbers of players that it supports."""

    num_colors: int
    """Colours of the deck."""
    num_ranks: int
    """Ranks of each colour."""
    max_hints: int
    """Hint tokens at the start."""
    max_lives: int
    """Lives at the start."""
    hand_sizes: Mapping[int, int] = field(hash=False)
    """Number of players, ascending, to cards in a hand; the first number is the default."""

    @property
    def players(self) -> tuple[int, ...]:
        """Allowed numbers of players."""
        return tuple(self.hand_sizes)


PRESETS: Mapping[str, Preset] = {
    # The boards of MARSHAL; on "marshal-simple", only 4 of 6 points are reachable.
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


def is_board(name: str) -> bool:
    """Tell whether this is the name of a board: a preset, or a free board (`make_spec`)."""
    return name in PRESETS or _FREE_BOARD.fullmatch(name) is not None


def make_spec(
    preset: str,
    num_players: int | None = None,
    *,
    num_colors: int | None = None,
    num_ranks: int | None = None,
    hand_size: int | None = None,
    max_hints: int | None = None,
    max_lives: int | None = None,
) -> GameSpec:
    """Return the checked parameters of a board: a preset, or a preset with parameters changed.

    A changed board gets a name that contains all its parameters except the number of players, so
    that records identify it completely. Such a name is also accepted as `preset`.

    Args:
        preset: Name of the board, one of `PRESETS`, or e.g. "4x3-hand4-info8-life3".
        num_players: Players of the game; None for the smallest number that the board supports.
        num_colors: Colours of the deck; for this and the parameters below, None keeps the preset's
            value.
        num_ranks: Ranks of each colour.
        hand_size: Cards in a hand. If the preset does not support this number of players, None
            means the hand size of the official rules.
        max_hints: Hint tokens at the start, which is also the maximum.
        max_lives: Lives at the start.

    Raises:
        GameParameterError: An unknown name, a number of players that the preset does not support,
            or a board that cannot be played.

    Example:
        >>> make_spec("full", 3, num_colors=4, num_ranks=3, hand_size=4).preset
        '4x3-hand4-info8-life3'
    """
    given = {
        "num_colors": num_colors,
        "num_ranks": num_ranks,
        "hand_size": hand_size,
        "max_hints": max_hints,
        "max_lives": max_lives,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    is_other_size = not changes.keys().isdisjoint({"num_colors", "num_ranks", "hand_size"})
    named = _named_board(preset, num_players, is_other_size=is_other_size)
    board = replace(named, **changes)
    # With another hand size a preset may have numbers of players that it does not support itself.
    is_supported = preset not in PRESETS or board.num_players in PRESETS[preset].hand_sizes
    name = preset if board == named and is_supported else board.free_name
    return GameSpec(preset=name, **asdict(board))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameters:
    """The parameters of a board, unchecked."""

    num_players: int
    num_colors: int
    num_ranks: int
    hand_size: int
    max_hints: int
    max_lives: int

    @property
    def free_name(self) -> str:
        """Name of a board that is not a preset; players are not part of a board's name."""
        return (
            f"{self.num_colors}x{self.num_ranks}-hand{self.hand_size}-info{self.max_hints}"
            f"-life{self.max_lives}"
        )


def _named_board(preset: str, num_players: int | None, *, is_other_size: bool) -> _Parameters:
    """Return the parameters that the name of a board stands for.

    Args:
        preset: The name.
        num_players: Players of the game; None for the smallest number that the board supports.
        is_other_size: Whether deck or hand will be changed. Then the board may have numbers of
            players that its preset does not support.

    Raises:
        GameParameterError: As `make_spec`, except that sizes are not checked.
    """
    if num_players is not None:
        _check_range("num_players", num_players)
    free = _FREE_BOARD.fullmatch(preset) if isinstance(preset, str) else None
    if free is not None:
        sizes = {name: int(value) for name, value in free.groupdict().items()}
        return _Parameters(num_players=2 if num_players is None else num_players, **sizes)
    board = PRESETS.get(preset) if isinstance(preset, str) else None
    if board is None:
        hint = did_you_mean(preset, PRESETS)
        raise GameParameterError(
            f"preset={shown(preset)}: no such board; {hint}known presets: {', '.join(PRESETS)}; "
            "name any other board by its sizes, e.g. 4x3-hand4-info8-life3 (colours x ranks)."
        )
    if num_players is None:
        num_players = board.players[0]
    hand_size = board.hand_sizes.get(num_players)
    if hand_size is None:
        if not is_other_size:
            raise _wrong_number_of_players(preset, num_players)
        hand_size = _OFFICIAL_HAND[num_players]
    return _Parameters(
        num_players=num_players,
        num_colors=board.num_colors,
        num_ranks=board.num_ranks,
        hand_size=hand_size,
        max_hints=board.max_hints,
        max_lives=board.max_lives,
    )


def recorded_spec(preset: str, num_players: int, board_hash: str) -> GameSpec | None:
    """Return the board that a record names.

    Records of version 0.1 identify boards with few decks by the hash of their rules, and deal half
    of the decks.

    Args:
        preset: Name of the board.
        num_players: Players of the game.
        board_hash: The record's hash. A suffix after a dash, such as a level of deductions, does
            not change the board.

    Returns:
        The board; None if this version has no such board.

    Raises:
        GameParameterError: See `make_spec`.
    """
    wanted_hash = board_hash.partition("-")[0]
    spec = make_spec(preset, num_players)
    if spec.hash == wanted_hash:
        return spec
    spec_of_0_1 = replace(spec, halves_decks=True)
    if spec_of_0_1.hash == wanted_hash:
        return spec_of_0_1
    return None


_LAPTOP_RULES = GameSpec(
    preset="", num_players=2, num_colors=2, num_ranks=2, hand_size=3, max_hints=3, max_lives=1
)
_MINI_RULES = replace(_LAPTOP_RULES, max_lives=3)
_ATTAINED = {_LAPTOP_RULES: 4443 / 1120, _MINI_RULES: 4441 / 1120}
"""Mean scores of the best known players on boards with these rules, whatever the preset's name.

Exact means over all 1120 decks for `policies.best_messages` after its 60 rounds. Played on these
rules with the text of a message as the key, 7,472 and 7,436 decisions agree. Not upper bounds."""


def attainable(spec: GameSpec) -> float | None:
    """Return the mean score of a board's best known players, see `_ATTAINED`; None if unknown."""
    rules = replace(spec, preset="", halves_decks=False)
    return _ATTAINED.get(rules)


@functools.cache  # needed at every deal
def num_decks(num_colors: int, num_ranks: int) -> int:
    """Return the number of different decks of a board.

    That is the number of orders of its cards, divided by the orders of equal cards. For example,
    the 2x2 board has 8! / (3! 1! 3! 1!) = 1120.
    """
    copies = [num_copies(rank, num_ranks) for rank in range(num_ranks)] * num_colors
    num_orders = math.factorial(sum(copies))
    num_equal_orders = math.prod(math.factorial(count) for count in copies)
    return num_orders // num_equal_orders


def _wrong_number_of_players(preset: str, num_players: int) -> GameParameterError:
    allowed = ", ".join(str(number) for number in PRESETS[preset].players)
    fitting = [name for name, board in PRESETS.items() if num_players in board.hand_sizes]
    return GameParameterError(
        f"players={num_players}: preset {preset!r} is for {allowed} players; "
        f"boards for {num_players}: {', '.join(fitting)}, or this one with another hand size "
        "(HANABI_HAND_SIZE)."
    )
