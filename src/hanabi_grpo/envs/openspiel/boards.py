"""TicTacToe and Connect Four: boards that both players see."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from pydantic import Field, model_validator

from hanabi_grpo.envs.base import random_policy
from hanabi_grpo.envs.openspiel.game import ROLES, OpenSpiel, OpenSpielConfig, Table, Words
from hanabi_grpo.envs.openspiel.policies import SEARCHES, minimax
from hanabi_grpo.errors import SettingsError

MARKS = "XO"
"""Of the first and the second player."""


def _grid(state: Any) -> list[str]:
    """Return the rows of a board, top row first, with x, o and . as OpenSpiel has them."""
    return str(state).split()


class TicTacToeWords(Words):
    """Cells are numbered 1 to 9, row by row."""

    table = Table("123456789")

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        return (
            "You play TicTacToe on a board of 3 rows and 3 columns. The first player puts X, the "
            "second O, in "
            "turns, each into an empty cell. Three of one's marks in a row, a column or a "
            "diagonal win; a full "
            f"board without them is a draw. You are the {ROLES[player]} player and put "
            f"{MARKS[player]}.\nCells have "
            "the numbers 1 to 9: 1 2 3 in the top row, 7 8 9 in the bottom row. End your reply "
            "with the number of a "
            "cell on a line of its own."
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        """Return the board; empty cells show their numbers."""
        cells = "".join(_grid(state)).upper()
        if config.style == "compact":
            return " ".join(f"{number}{cell}" for number, cell in enumerate(cells, 1))
        shown = [cell if cell != "." else str(number) for number, cell in enumerate(cells, 1)]
        return "\n".join(" ".join(shown[row : row + 3]) for row in (0, 3, 6))

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        return "\n".join(" ".join(row.upper()) for row in _grid(state))


class ConnectFourConfig(OpenSpielConfig):
    """Size of the board."""

    rows: int = Field(default=6, ge=2, le=10)
    """Rows of Connect Four's board."""
    columns: int = Field(default=7, ge=2, le=10)
    """Columns of Connect Four's board."""
    in_a_row: int = 4
    """Discs in a row that win Connect Four, 3 to the longer side."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        longer = max(self.rows, self.columns)
        if not 3 <= self.in_a_row <= longer:
            raise SettingsError(f"in_a_row={self.in_a_row}: must be from 3 to {longer}.")
        return self

    def game(self) -> str:
        return f"connect_four(rows={self.rows},columns={self.columns},x_in_row={self.in_a_row})"


class ConnectFourWords(Words):
    """Columns have letters from the left."""

    table = Table("abcdefghij")

    def rules(self, config: ConnectFourConfig, player: int) -> str:
        letters = self.actions(config, None)
        return (
            f"You play Connect Four on a board of {config.rows} rows and {config.columns} "
            "columns. The first player "
            "has the discs X, the second O. In turns each drops a disc into a column that is not "
            "full; it falls to "
            f"the lowest empty cell. {config.in_a_row} of one's discs in a row, a column or a "
            "diagonal win; a full "
            f"board without them is a draw. You are the {ROLES[player]} player and have "
            f"{MARKS[player]}.\nColumns "
            f"have the letters {letters[0]} to {letters[-1]} from the left. End your reply with "
            "the letter of a "
            "column on a line of its own."
        )

    def state(self, config: ConnectFourConfig, state: Any, player: int) -> str:
        """Return the board; in the compact style every disc with its cell, e.g. "a1X", from the
        bottom row up.
        """
        rows, letters = [row.upper() for row in _grid(state)], self.actions(config, state)
        if config.style == "full":
            return "\n".join([" ".join(letters), *(" ".join(row) for row in rows)])
        discs = [
            f"{letter}{height}{mark}"
            for height, row in enumerate(reversed(rows), 1)
            for letter, mark in zip(letters, row, strict=True)
            if mark != "."
        ]
        return " ".join([MARKS[player], *discs])

    def actions(self, config: ConnectFourConfig, state: Any) -> Sequence[str]:
        return self.table.words[: config.columns]

    def picture(self, config: ConnectFourConfig, state: Any) -> str:
        return "\n".join(
            [
                " ".join(self.actions(config, state)),
                *(" ".join(row.upper()) for row in _grid(state)),
            ]
        )


_board = partial(
    OpenSpiel,
    roles=ROLES,
    policies={"random": random_policy, "minimax": minimax, **SEARCHES},
    teacher_noise=0.3,
)

TIC_TAC_TOE = _board(
    "tic_tac_toe",
    TicTacToeWords(),
    presets={"tic_tac_toe": OpenSpielConfig(preset="tic_tac_toe")},
    teachers=("minimax",),
)
CONNECT_FOUR = _board(
    "connect_four",
    ConnectFourWords(),
    presets={
        "connect_four": ConnectFourConfig(preset="connect_four"),
        "connect_four-4x5": ConnectFourConfig(
            preset="connect_four-4x5", rows=4, columns=5, in_a_row=3
        ),
    },
    teachers=("mcts-10",),
)
