"""A person at the terminal as a player, with what a model is shown in that seat."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.types import Reply, player_name

PROMPT = "Your reply (l: legal actions, q: leave): "
_LIST = "l"
_LEAVE = "q"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonPlayer:
    """The person at the terminal."""

    say: Callable[[str], None]
    """Function that shows a text."""
    ask: Callable[[str], str]
    """Function that shows its argument and returns a line; EOFError at the end of input."""
    name: str = "human"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "PersonSeat":
        """Show the system message and return a seat, see `rollout.loop.Player.seat`."""
        self.say(f"You are {player_name(player)}.")
        system = task.environment.system(task.config, player)
        if system:
            self.say(system)
        return PersonSeat(player=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonSeat:
    """A person as one player of one game."""

    player: PersonPlayer

    async def reply(self, seen: Observation) -> Reply:
        """Ask until the answer is a legal action.

        Raises:
            EOFError: The person typed q, or the input ended.
        """
        message = seen.message()
        legal = seen.legal()
        self.player.say(f"\n{message}")
        while True:
            line = self.player.ask(PROMPT).strip()
            action = seen.parse(line)
            is_allowed = action is not None and (legal is None or action in legal)
            # Where actions are listed, an action may be called like a command.
            if is_allowed and (legal is not None or line not in (_LIST, _LEAVE)):
                return Reply(text=line, prompt=message)
            if line == _LEAVE:
                raise EOFError
            if line == _LIST:
                self.player.say("any text" if legal is None else "\n".join(legal))
            elif line:
                self.player.say(
                    "That names no action."
                    if action is None
                    else f"{action} is not legal now; l lists what is."
                )
