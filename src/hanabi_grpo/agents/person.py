"""A person at the terminal as a player: a table and a menu, or what a model reads in that seat."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.people import Choice, Scene
from hanabi_grpo.texts import visible
from hanabi_grpo.types import HUMAN, Reply, player_name

PROMPT = "Your move (l: list, r: rules, q: leave): "
ANSWER_PROMPT = "Your answer (r: rules, q: leave): "
"""Where no actions are listed."""
_LIST = "l"
_RULES = "r"
_LEAVE = "q"
_WIDTH = 79
"""Characters of a line that is wrapped here."""
_INDENT = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonPlayer:
    """The person at the terminal."""

    say: Callable[[str], None]
    """Function that shows a text."""
    ask: Callable[[str], str]
    """Function that shows its argument and returns a line; EOFError at the end of input."""
    raw: bool = False
    """Whether to show the model's messages instead of a table."""
    name: str = HUMAN
    seats: list["PersonSeat"] = field(default_factory=list)
    """Seats taken so far."""

    def seat(self, player: int, *, task: Task[Any], game: int) -> "PersonSeat":
        """Show the rules and return a seat, see `rollout.loop.Player.seat`."""
        environment = task.environment
        if self.raw:
            rules = environment.system_message(task.config, player)
        else:
            rules = wrapped(environment.person_message(task.config, player))
        self.say(f"You are {player_name(player)}.")
        if rules:
            self.say(rules)
        seat = PersonSeat(player=self, rules=rules)
        self.seats.append(seat)
        return seat

    def show_end(self) -> None:
        """Show each seat's final table, and the events since its last turn."""
        for seat in self.seats:
            # A person who had no turn saw nothing.
            if seat.seen and not self.raw:
                self.say("\n" + scene_text(seat.seen[-1].scene(), legend=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonSeat:
    """A person as one player of one game."""

    player: PersonPlayer
    rules: str
    """The text that `r` shows."""
    seen: list[Observation] = field(default_factory=list)
    """The observation of each turn. Each keeps following the game as it continues."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask until the answer is a legal action.

        Raises:
            EOFError: The person typed q, or the input ended.
        """
        scene = seen.scene()
        message = seen.message()
        is_first = not self.seen
        self.seen.append(seen)
        if self.player.raw:
            self.player.say(f"\n{message}")
        else:
            self.player.say("\n" + scene_text(scene, legend=is_first))
        prompt = ANSWER_PROMPT if scene.choices is None else PROMPT
        while True:
            line = self.player.ask(prompt).strip()
            reply = read_reply(line, seen, scene)
            # Where actions are listed, an action may have the same name as a command.
            is_command = line in (_LIST, _RULES, _LEAVE)
            if reply is not None and (scene.choices is not None or not is_command):
                return Reply(text=reply, prompt=message)
            if line == _LEAVE:
                raise EOFError
            if line == _RULES:
                self.player.say(self.rules or "This environment has no written rules.")
                if scene.legend and not self.player.raw:
                    self.player.say(wrapped(scene.legend))
            elif line == _LIST:
                self.player.say(menu_text(scene.choices))
            elif line:
                self.player.say(refusal(line, seen, scene))


def read_reply(line: str, seen: Observation, scene: Scene) -> str | None:
    """Return the reply that a line stands for; None if it names no legal action.

    Where actions are listed the reply is the action as models are asked to write it, so that a
    model can learn from the record.

    Args:
        line: The person's input: an action, or a number from the menu.
        seen: The person's observation.
        scene: Its scene, which has the menu.
    """
    if seen.is_call(line):
        return line
    legal = seen.legal()
    for text in (line, scene.prefix + line):
        action = seen.parse(text) if line else None
        if action is not None and (legal is None or action in legal):
            return text if legal is None else action
    choices = scene.choices or ()
    if is_numbered(choices) and line.isascii() and line.isdigit() and len(line) <= len(str(10**6)):
        number = int(line)
        if 1 <= number <= len(choices):
            return choices[number - 1].reply
    words = " ".join(line.lower().split())
    named = [choice.reply for choice in choices if words in _phrases(choice)]
    return named[0] if len(named) == 1 else None


def _phrases(choice: Choice) -> tuple[str, ...]:
    """Return the wordings of a menu choice, e.g. "hint player_1 rank 1" and "hint rank 1"."""
    if not choice.group:
        return ()
    verb, *_ = choice.group.split()
    return f"{choice.group} {choice.label}".lower(), f"{verb} {choice.label}".lower()


def refusal(line: str, seen: Observation, scene: Scene) -> str:
    """Return why `read_reply` rejected a line, and what to type instead."""
    action = seen.parse(line)
    if action is not None:
        return f"{action} is not legal now. {_allowed(scene)}"
    return f"That is not an action. {_allowed(scene)}"


def _allowed(scene: Scene) -> str:
    if not scene.choices:
        return "Type your answer."
    example = scene.choices[0].reply
    if is_numbered(scene.choices):
        return f"Type an action, e.g. {example}, or its number, 1 to {len(scene.choices)}."
    return f"Type one of: {', '.join(choice.reply for choice in scene.choices)}."


def is_numbered(choices: Sequence[Choice]) -> bool:
    """Tell whether a menu is numbered: it is not if an action is itself a number."""
    return not any(choice.reply.strip().isdigit() for choice in choices)


def scene_text(scene: Scene, *, legend: bool) -> str:
    """Return a scene as the terminal shows it.

    Args:
        scene: The scene.
        legend: Whether to explain the table.
    """
    parts = []
    if scene.news:
        lines = [wrapped(sentence, first="- ", rest="  ") for sentence in scene.news]
        parts.append("Since your last turn:\n" + "\n".join(lines))
    parts.append(_table_text(scene.table))
    if legend and scene.legend:
        parts.append(wrapped(scene.legend))
    if scene.choices:
        parts.append(menu_text(scene.choices))
    return "\n\n".join(parts)


def _table_text(table: str) -> str:
    """Return a table, indented; lines that are too long, such as sentences, are wrapped."""
    lines = []
    for line in visible(table).strip("\n").splitlines():
        if len(line) + len(_INDENT) <= _WIDTH:
            lines.append(f"{_INDENT}{line}".rstrip())
        else:
            lines.append(wrapped(line, first=_INDENT, rest=_INDENT))
    return "\n".join(lines)


def menu_text(choices: Sequence[Choice] | None) -> str:
    """Return the legal actions, numbered unless a number could be mistaken for an action.

    For example:
        Play           [1] slot 0  [2] slot 1
        Hint player_1  [3] red  [4] rank 1
    """
    if choices is None:
        return "Any text is a valid answer."
    numbered = is_numbered(choices)
    entries = []
    for number, choice in enumerate(choices, 1):
        text = f"[{number}] {choice.label}" if numbered else choice.label
        entries.append((choice.group, visible(text)))
    width = max((len(group) for group, _ in entries), default=0)
    lines = []
    for group, members in groupby(entries, key=lambda entry: entry[0]):
        # Lines break only between labels, never inside one.
        texts = [text.replace(" ", "\x00") for _, text in members]
        head = f"{group.ljust(width)}  " if width else "Moves:  "
        filled = textwrap.fill(
            "  ".join(texts),
            _WIDTH,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(filled.replace("\x00", " "))
    return "\n".join(lines)


def wrapped(text: str, *, first: str = "", rest: str = "") -> str:
    """Return a text with each of its lines wrapped for a terminal of 80 columns.

    Args:
        text: The text.
        first: Indent of the first output line of each line.
        rest: Indent of its other output lines.
    """
    lines = []
    for line in visible(text).splitlines():
        lines.append(
            textwrap.fill(line, _WIDTH, initial_indent=first, subsequent_indent=rest) or line
        )
    return "\n".join(lines)
