"""A person as a policy: shows the table, asks for a move, and asks again until it is a legal one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.hanabi.human.moves import read_move
from hanabi_grpo.envs.hanabi.human.screens import beliefs_screen, help_screen, log_screen, sentences, show, table_screen
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.rules import format_action
from hanabi_grpo.types import Reply

PROMPT = "Your move (? for help): "


class PlayerLeftError(Exception):
    """The person has left the table; no fault, but the game cannot go on now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanPolicy:
    """Lets whoever sits at the terminal play one seat.

    Example:
        HumanPolicy(console=make_console(), ask=input, labels=("you", "player_1 iggi"))
    """

    console: Console
    ask: Callable[[str], str]
    """Shows its argument and returns a line; EOFError at the end of input."""
    labels: Sequence[str]
    """Per seat, what the table calls it."""
    style: ObservationStyle = ObservationStyle.FULL
    """How the move is worded in the record."""
    name: str = "human"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "HumanSeat":
        """Return the seat of one game."""
        return HumanSeat(self)


class HumanSeat:
    """The person's seat; it keeps nothing, since a view holds the whole past."""

    def __init__(self, policy: HumanPolicy) -> None:
        self._policy = policy

    async def reply(self, seen: Observation) -> Reply:
        """Ask until the answer is a legal move; waits at the terminal meanwhile.

        Raises:
            PlayerLeftError: The person typed q, or the input ended.
        """
        policy, view = self._policy, seen.view()
        told = sentences(view)
        table = table_screen(view, policy.labels, told)
        show(policy.console, table)
        while True:
            try:
                line = policy.ask(PROMPT).strip()
            except EOFError as error:
                raise PlayerLeftError("the input ended") from error
            command = line.lower()
            if command in ("q", "quit", "exit"):
                raise PlayerLeftError("q was typed")
            if not command:
                continue
            if command in ("?", "help"):
                show(policy.console, help_screen(view))
            elif command == "k":
                show(policy.console, beliefs_screen(view))
            elif command == "l":
                show(policy.console, log_screen(told))
            elif command == "t":
                show(policy.console, table)
            else:
                move = read_move(line, view)
                if not isinstance(move, str):
                    return Reply(text=format_action(move, style=policy.style, num_players=view.num_players))
                policy.console.print(move, markup=False)
