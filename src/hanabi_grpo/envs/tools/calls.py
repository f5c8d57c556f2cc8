"""The syntax of tool calls, and what players are told about tools and results.

A call is written as in the chat templates of Qwen3 and many other models, anywhere in a reply
outside its thoughts:

    <tool_call>{"name": "calculator", "arguments": {"expression": "3 + 4"}}</tool_call>

An environment for tiny models, which know words but no JSON, may enable the short form: the reply
starts with the tool's name, and the rest is the argument, as in `calculator 3 + 4`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.texts import think_parts, without_markup
from hanabi_grpo.envs.tools.tool import MAX_ARGUMENT, Outcome, Tool
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import CallError

CALL = "<tool_call>"
END_OF_CALL = "</tool_call>"
RESULT = "result"
ERROR = "error"
ROLE = "tool"
"""Chat-template role of messages with results."""
SHORT_WORDS = (RESULT, ERROR, ROLE)
"""Words that a tiny model reads in addition to the names of tools."""
_MAX_NAME = 60
"""Maximum recorded length of an unknown tool's name."""
_NO_CALLS_LEFT = "That was the last call of this turn: answer now."


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCall:
    """A tool call as written in a reply."""

    name: str
    """Name of the tool; "" if it cannot be parsed."""
    argument: str
    tool: Tool | None
    """The tool to run; None: there is no tool for this call, see `refusal`."""
    refusal: Outcome | None = None
    """What the player is told instead of a result."""


def read_call(reply: str, tools: Sequence[Tool], *, short: bool = False) -> WantedCall | None:
    """Return the call in a reply, or None if it has none.

    A malformed call is also a call; the player is then told what is wrong.

    Args:
        reply: Any text; no text raises an error. Calls in thoughts are ignored.
        tools: The available tools.
        short: Whether the short form is also accepted.
    """
    if not tools:
        return None
    _, parts, is_cut_off = think_parts(reply)
    if is_cut_off:
        return None
    text = "\n".join(parts).strip()
    _, tag, rest = text.partition(CALL)
    if tag:
        content, _, behind = rest.partition(END_OF_CALL)
        if CALL in content or CALL in behind:
            return _refused("", "", "make one call a reply", tools, short)
        return _read_json(content.strip(), tools, short)
    if not short:
        return None
    name, _, argument = text.partition(" ")
    for tool in tools:
        if name == tool.name:
            return _checked(tool, argument.strip(), tools, short)
    return None


def _read_json(content: str, tools: Sequence[Tool], short: bool) -> WantedCall:
    try:
        call: Any = json.loads(content)
    except (ValueError, RecursionError):
        return _refused("", "", "a call is one JSON object", tools, short)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return _refused("", "", 'a call is a JSON object with "name"', tools, short)
    # It is quoted to the player and recorded; JSON may hold a lone surrogate.
    name = without_markup(encodable(call["name"]))[:_MAX_NAME]
    arguments = call.get("arguments", call.get("parameters"))
    named = [tool for tool in tools if tool.name == call["name"]]
    if not named:
        refusal = Outcome(
            text=f"there is no tool {name!r}. {call_rules(tools, short)}",
            error=CallError.UNKNOWN_TOOL,
        )
        return WantedCall(name=name, argument="", tool=None, refusal=refusal)
    [tool] = named
    if tool.parameters is not None:
        return _read_object(tool, arguments, tools, short)
    if isinstance(arguments, dict) and list(arguments) == [tool.argument]:
        arguments = arguments[tool.argument]
    is_number = isinstance(arguments, int | float) and not isinstance(arguments, bool)
    if not isinstance(arguments, str) and not is_number:
        problem = f'{tool.name} takes "arguments" with {tool.argument!r} alone, a text'
        return _refused(tool.name, "", problem, tools, short)
    return _checked(tool, str(arguments), tools, short)


def _read_object(tool: Tool, arguments: Any, tools: Sequence[Tool], short: bool) -> WantedCall:
    """Parse the arguments of a tool with several arguments, or with none."""
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict) or not arguments.keys() <= set(tool.arguments):
        allowed = ", ".join(tool.arguments) or "nothing"
        problem = f'{tool.name} takes "arguments", an object with {allowed}'
        return _refused(tool.name, "", problem, tools, short)
    return _checked(tool, json.dumps(arguments, ensure_ascii=False), tools, short)


def _checked(tool: Tool, argument: str, tools: Sequence[Tool], short: bool) -> WantedCall:
    argument = encodable(argument)
    if len(argument) > MAX_ARGUMENT:
        problem = f"an argument has at most {MAX_ARGUMENT} characters"
        return _refused(tool.name, argument[:MAX_ARGUMENT], problem, tools, short)
    return WantedCall(name=tool.name, argument=argument, tool=tool)


def _refused(
    name: str, argument: str, problem: str, tools: Sequence[Tool], short: bool
) -> WantedCall:
    refusal = Outcome(text=f"{problem}. {call_rules(tools, short)}", error=CallError.BAD_CALL)
    return WantedCall(name=name, argument=argument, tool=None, refusal=refusal)


def write_call(tool: Tool, argument: str, *, short: bool) -> str:
    """Return the reply with which a script calls a tool.

    Args:
        tool: The tool.
        argument: Its argument; a JSON object if the tool has `parameters`.
        short: Whether to write the short form.
    """
    if short:
        return f"{tool.name} {argument}"
    arguments = {tool.argument: argument} if tool.parameters is None else json.loads(argument)
    call = json.dumps({"name": tool.name, "arguments": arguments}, ensure_ascii=False)
    return f"{CALL}{call}{END_OF_CALL}"


def call_rules(tools: Sequence[Tool], short: bool) -> str:
    """Return how calls of the given tools are written."""
    examples = []
    for tool in tools:
        example = "…"
        if tool.parameters is not None:
            example = json.dumps(dict.fromkeys(tool.parameters, "…"), ensure_ascii=False)
        examples.append(write_call(tool, example, short=short))
    return f"Write {' or '.join(examples)} and nothing behind it."


def describe_tools(tools: Sequence[Tool], calls: int, *, short: bool = False) -> str:
    """Return what a language model or a person is told about its tools.

    Args:
        tools: The tools, at least one.
        calls: Maximum number of calls in one turn.
        short: Whether to describe the short form.
    """
    lines = [
        "Before you answer you may call a tool, at most "
        f"{calls} {'time' if calls == 1 else 'times'} a turn. Only you see the call and its "
        f"result. {call_rules(tools, short)} The tools:"
    ]
    for tool in tools:
        line = f"- {tool.name}({', '.join(tool.arguments)}): {tool.description}"
        limits = []
        if tool.calls_per_turn is not None:
            limits.append(f"{tool.calls_per_turn} a turn")
        if tool.calls_per_episode is not None:
            limits.append(f"{tool.calls_per_episode} in all")
        if limits:
            line += f" (at most {', '.join(limits)})"
        lines.append(line)
    return "\n".join(lines)


def result_message(outcome: Outcome, calls_left: int, *, short: bool) -> str:
    """Return the message that a player gets for a call.

    Args:
        outcome: Outcome of the call.
        calls_left: Number of calls that the player has left in this turn.
        short: Whether the player uses the short form. It is then only told that there was an error,
            because a tiny model has no words for what is wrong.
    """
    if short:
        return f"{RESULT} {ERROR if outcome.error else outcome.text}"
    text = f"Error: {outcome.text}" if outcome.error else outcome.text
    return text if calls_left else f"{text}\n\n{_NO_CALLS_LEFT}"
