"""TicTacToe and Connect Four: board games in which both players see everything."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from hanabi_grpo.envs.base import Policy, random_policy
from hanabi_grpo.envs.openspiel.game import (
    ROLES,
    ActionTexts,
    OpenSpiel,
    OpenSpielConfig,
    Wording,
)
from hanabi_grpo.envs.openspiel.policies import SEARCHES, minimax
from hanabi_grpo.errors import SettingsError

MARKS = "XO"
"""Marks of the first and the second player."""
EMPTY = "."
"""OpenSpiel's character for an empty cell."""


def _board_rows(state: Any) -> list[str]:
    """Return the rows of a board, top row first, one character per cell: X, O or a dot."""
    return str(state).upper().split()


def _spaced_rows(state: Any) -> list[str]:
    """Return the rows with a space between cells, for people."""
    return [" ".join(row) for row in _board_rows(state)]


class TicTacToeWording(Wording):
    """Cells are numbered 1 to 9, row by row."""

    action_texts = ActionTexts("123456789")

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        return (
            "You play TicTacToe on a board of 3 rows and 3 columns. The first player puts X, the "
            "second O, in turns, each into an empty cell. Three of one's marks in a row, a column "
            "or a diagonal win; a full board without them is a draw. You are the "
            f"{ROLES[player]} player and put {MARKS[player]}.\n"
            "Cells have the numbers 1 to 9: 1 2 3 in the top row, 7 8 9 in the bottom row. End "
            "your reply with the number of a cell on a line of its own."
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        """Return the board; empty cells show their numbers."""
        cells = "".join(_board_rows(state))
        if config.style == "compact":
            return " ".join(f"{number}{cell}" for number, cell in enumerate(cells, 1))
        shown = [str(number) if cell == EMPTY else cell for number, cell in enumerate(cells, 1)]
        rows = [shown[0:3], shown[3:6], shown[6:9]]
        return "\n".join(" ".join(row) for row in rows)

    def legend(self, config: OpenSpielConfig, player: int) -> str:
        return f"You are {MARKS[player]}. An empty cell shows its number."

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        return "\n".join(_spaced_rows(state))


class ConnectFourConfig(OpenSpielConfig):
    """Settings of Connect Four: size of the board."""

    rows: int = Field(default=6, ge=2, le=10)
    """Number of rows of the Connect Four board."""
    columns: int = Field(default=7, ge=2, le=10)
    """Number of columns of the Connect Four board."""
    in_a_row: int = 4
    """Number of discs in a row that win Connect Four, from 3 to the longer side of the board."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        longer = max(self.rows, self.columns)
        if not 3 <= self.in_a_row <= longer:
            raise SettingsError(f"in_a_row={self.in_a_row}: must be from 3 to {longer}.")
        return self

    def game(self) -> str:
        return f"connect_four(rows={self.rows},columns={self.columns},x_in_row={self.in_a_row})"


class ConnectFourWording(Wording):
    """Columns are lettered from the left."""

    action_texts = ActionTexts("abcdefghij")

    def rules(self, config: ConnectFourConfig, player: int) -> str:
        letters = self.actions(config, None)
        return (
            f"You play Connect Four on a board of {config.rows} rows and {config.columns} columns. "
            "The first player has the discs X, the second O. In turns each drops a disc into a "
            "column that is not full; it falls to the lowest empty cell. "
            f"{config.in_a_row} of one's discs in a row, a column or a diagonal win; a full board "
            f"without them is a draw. You are the {ROLES[player]} player and have "
            f"{MARKS[player]}.\n"
            f"Columns have the letters {letters[0]} to {letters[-1]} from the left. End your reply "
            "with the letter of a column on a line of its own."
        )

    def state(self, config: ConnectFourConfig, state: Any, player: int) -> str:
        """Return the board.

        In the compact style, this is the player's mark and every disc with its cell, from the
        bottom row up, e.g. "O a1X b1O".
        """
        letters = self.actions(config, state)
        if config.style == "full":
            return self.picture(config, state)
        words = [MARKS[player]]
        for height, row in enumerate(reversed(_board_rows(state)), 1):
            for letter, mark in zip(letters, row, strict=True):
                if mark != EMPTY:
                    words.append(f"{letter}{height}{mark}")
        return " ".join(words)

    def actions(self, config: ConnectFourConfig, state: Any) -> Sequence[str]:
        return self.action_texts.texts[: config.columns]

    def legend(self, config: ConnectFourConfig, player: int) -> str:
        return f"You are {MARKS[player]}. A letter names the column under it."

    def picture(self, config: ConnectFourConfig, state: Any) -> str:
        letters = " ".join(self.actions(config, state))
        return "\n".join([letters, *_spaced_rows(state)])


_POLICIES: Mapping[str, Callable[[], Policy]] = {
    "random": random_policy,
    "minimax": minimax,
    **SEARCHES,
}
_TEACHER_NOISE = 0.3

TIC_TAC_TOE = OpenSpiel(
    "tic_tac_toe",
    TicTacToeWording(),
    roles=ROLES,
    presets={"tic_tac_toe": OpenSpielConfig(preset="tic_tac_toe")},
    policies=_POLICIES,
    teachers=("minimax",),
    teacher_noise=_TEACHER_NOISE,
)
CONNECT_FOUR = OpenSpiel(
    "connect_four",
    ConnectFourWording(),
    roles=ROLES,
    presets={
        "connect_four": ConnectFourConfig(preset="connect_four"),
        "connect_four-4x5": ConnectFourConfig(
            preset="connect_four-4x5", rows=4, columns=5, in_a_row=3
        ),
    },
    policies=_POLICIES,
    teachers=("mcts-10",),
    teacher_noise=_TEACHER_NOISE,
)
