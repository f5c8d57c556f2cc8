"""A person at the terminal as a player of any environment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.types import Reply, player_name

PROMPT = "Your reply (l: legal actions, q: leave): "


class PlayerLeftError(Exception):
    """The person has left; no fault, but the game cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Lets whoever sits at the terminal play one seat, with what a model is shown there."""

    say: Callable[[str], None]
    ask: Callable[[str], str]
    """Shows its argument and returns a line; EOFError at the end of input."""
    name: str = "human"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "PersonSeat":
        """Show the system message and return the seat of one game."""
        system = task.environment.system(task.config, player)
        self.say("\n".join(filter(None, (f"You are {player_name(player)}.", system))))
        return PersonSeat(self)


@dataclass(frozen=True, slots=True)
class PersonSeat:
    """The person in one game; it remembers by itself."""

    person: Person

    async def reply(self, seen: Observation) -> Reply:
        """Ask until the answer is a legal action; waits at the terminal meanwhile.

        Raises:
            PlayerLeftError: The person typed q, or the input ended.
        """
        say, message, legal = self.person.say, seen.message(), seen.legal()
        listed = "any text" if legal is None else "\n".join(legal)
        say(f"\n{message}")
        while True:
            try:
                line = self.person.ask(PROMPT).strip()
            except EOFError as error:
                raise PlayerLeftError("the input ended") from error
            action = seen.parse(line)
            if legal is not None and action in legal:
                return Reply(text=line, prompt=message)
            if line == "q":
                raise PlayerLeftError("q was typed")
            if line == "l":
                say(listed)
            elif legal is None and action is not None:
                return Reply(text=line, prompt=message)
            elif line:
                say("That names no action." if action is None else f"{action} is not legal now; l lists what is.")
