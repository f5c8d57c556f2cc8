"""The counters of one line-up: games go in one by one, the sums can be merged and kept as JSON."""

import zlib
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.envs.hanabi.conventions.layout import GameCount, layout_of
from hanabi_grpo.envs.hanabi.conventions.walk import count_game
from hanabi_grpo.envs.hanabi.rules import Game, GameSpec
from hanabi_grpo.errors import GameParameterError, SettingsError

NUM_GROUPS = 32
"""Groups of deals. Leaving out one at a time gives the standard errors, which are then good to about one eighth."""

_Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    board: dict[str, str | int | bool]
    shapes: dict[str, list[int]]
    groups: list[list[_Count]]


_FORMAT = "hanabi-grpo conventions 1"


class ConventionCounts:
    """What the games of one line-up on one board add up to; memory does not grow with the number of games.

    A hash of the deck puts a game into one of `NUM_GROUPS` groups, so all games of one deal count as one draw in the
    standard errors, and the same games give the same counts in whatever order and on however many machines they are
    added.

    Example:
        counts = ConventionCounts(make_spec("laptop"))
        counts.add(game)
        counts.merge(ConventionCounts.from_json(json.loads(path.read_text())))

    Attributes:
        spec: The board.
    """

    __slots__ = ("_groups", "_layout", "spec")

    def __init__(self, spec: GameSpec) -> None:
        """Start from nothing."""
        self.spec = spec
        self._layout = layout_of(spec)
        self._groups: list[list[int]] = [[0] * self._layout.size for _ in range(NUM_GROUPS)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConventionCounts):
            return NotImplemented
        return self.spec == other.spec and self._groups == other._groups

    __hash__ = None  # type: ignore[assignment]  # counts change

    @property
    def num_games(self) -> int:
        """Number of games added."""
        return sum(row[GameCount.GAMES] for row in self._groups)

    def add(self, game: Game) -> None:
        """Count one game; an interrupt leaves it counted completely or not at all.

        A game that was cut off before its end counts as far as it went.

        Raises:
            GameParameterError: The game is on another board; nothing is counted.
        """
        self._check_board(game.spec, "a game")
        deck = bytes([8 * card.color + card.rank for card in game.deck])
        group = zlib.crc32(deck) % NUM_GROUPS
        row = self._groups[group].copy()
        count_game(game, self._layout, row)
        self._groups[group] = row

    def merge(self, other: "ConventionCounts") -> None:
        """Add all that another one has counted on the same board.

        Raises:
            GameParameterError: It is of another board.
        """
        self._check_board(other.spec, "counts")
        pairs = zip(self._groups, other._groups, strict=True)
        self._groups = [[one + two for one, two in zip(mine, its, strict=True)] for mine, its in pairs]

    def groups(self) -> np.ndarray:
        """Return the counters [group of deals, counter], of those groups that have games."""
        rows = [row for row in self._groups if row[GameCount.GAMES]]
        return np.array(rows, dtype=np.int64).reshape(len(rows), self._layout.size)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values, from which `from_json` makes them again.

        A group is a flat list: index of a counter, its value, index, value, ..., of the counters above 0.
        """
        groups = [
            [number for index, count in enumerate(row) if count for number in (index, count)] for row in self._groups
        ]
        shapes = {name: list(shape) for name, shape in self._layout.shapes.items()}
        return {"format": _FORMAT, "board": asdict(self.spec), "shapes": shapes, "groups": groups}

    @classmethod
    def from_json(cls, data: object) -> "ConventionCounts":
        """Read what `to_json` made.

        Raises:
            SettingsError: The data are something else, of another version, or damaged.
            GameParameterError: They name a board that cannot be played.
        """
        try:
            saved = _Saved.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            raise _damaged(f"{'.'.join(map(str, first['loc'])) or 'the data'}: {first['msg']}") from error
        if saved.format != _FORMAT:
            raise _damaged(f"format={saved.format!r}, this version reads {_FORMAT!r}")
        try:
            spec = GameSpec(**saved.board)  # type: ignore[arg-type]  # it checks every value itself
        except TypeError as error:
            raise _damaged(f"board: {error}") from error
        counts = cls(spec)
        shapes = {name: list(shape) for name, shape in counts._layout.shapes.items()}
        if saved.shapes != shapes:
            raise _damaged(f"shapes={saved.shapes}, this version has {shapes}")
        if len(saved.groups) != NUM_GROUPS:
            raise _damaged(f"{len(saved.groups)} groups, this version has {NUM_GROUPS}")
        for row, flat in zip(counts._groups, saved.groups, strict=True):
            indices, values = flat[::2], flat[1::2]
            if len(indices) != len(values) or sorted(set(indices)) != indices or indices[-1:] > [len(row) - 1]:
                raise _damaged(f"a group is no list of ascending indices below {len(row)}, each with its count")
            for index, value in zip(indices, values, strict=True):
                row[index] = value
            if flat and not row[GameCount.GAMES]:
                raise _damaged("a group has moves but no games")
        return counts

    def _check_board(self, spec: GameSpec, what: str) -> None:
        if spec is not self.spec and spec.hash != self.spec.hash:
            raise GameParameterError(
                f"{what} on {spec.preset} with {spec.num_players} players (board {spec.hash}): these are the counts of "
                f"{self.spec.preset} with {self.spec.num_players} players (board {self.spec.hash}); count every board "
                "on its own."
            )


def _damaged(why: str) -> SettingsError:
    return SettingsError(f"no convention counts that can be read: {why}; collect the games again.")
