"""A tool: a function from text to text that an environment offers to its players."""

import queue
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NoReturn

from hanabi_grpo.envs.texts import without_markup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import CallError

MAX_ARGUMENT = 2000
"""Maximum length of an argument in characters."""
MAX_RESULT = 2000
"""Maximum length of a result in characters; longer results are truncated."""
MAX_STUCK = 4
"""Maximum number of timed-out calls of one slow tool that may still be running in a process."""
_late: list[threading.Thread] = []
"""Threads of calls that timed out but have not returned."""
_late_lock = threading.Lock()
"""Guards `_late`, because calls of many games run concurrently."""
DEFAULT_CALL_SECONDS = 60.0
"""What `call_seconds` returns outside a slow call."""
_PREPARE_SECONDS = 120.0
"""Time limit of `Tool.prepare`."""
_seconds: ContextVar[float] = ContextVar("seconds", default=DEFAULT_CALL_SECONDS)
"""Time limit of the slow call in progress."""
_CUT = " (cut)"
_MAX_REASON = 200
"""Maximum length of an exception text that is shown to a player."""


class ToolError(ValueError):
    """Raised by a tool for an invalid argument; the player reads the message.

    The message should say what is allowed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Example:
        Tool(name="shout", description="repeats a text in capitals", run=str.upper)
    """

    name: str
    """One word of letters, digits and underscores."""
    description: str
    """What the tool does, in one line, as players read it."""
    run: Callable[[str], str]
    """Returns the result for an argument, or raises a `ToolError`.

    It has no access to the game, so results cannot reveal anything the player must not know."""
    argument: str = "input"
    """Name of the argument in a call."""
    parameters: tuple[str, ...] | None = None
    """Names of the arguments, if there is not exactly one: `run` then gets a JSON object with them,
    and `argument` is ignored."""
    slow: bool = False
    """Whether a call may take longer than a few milliseconds.

    A slow call runs in its own thread with a time limit, and a server plays the environment's
    episodes in separate processes; see `Environment.may_block`. A tool that is not slow is called
    directly and cannot be interrupted."""
    calls_per_turn: int | None = None
    """Maximum number of calls per turn of a player; None: only HANABI_TOOL_CALLS applies."""
    calls_per_episode: int | None = None
    """Maximum number of calls per player and episode; None: no limit."""
    timeout: float | None = None
    """Time limit of a slow call in seconds; None: HANABI_TOOL_TIMEOUT."""
    prepare: Callable[[], object] | None = None
    """Called before a slow call and not counted in its time, e.g. to start a server."""
    version: str = "1"
    """Version of its results, e.g. the digest of a table; part of the rules hash."""

    def __post_init__(self) -> None:
        """Raise a `SettingsError` for a tool that no player could call."""
        if not (self.name.isascii() and self.name.isidentifier()):
            self._refuse("name", "give one word of letters, digits and underscores")
        if not self.argument.isidentifier():
            self._refuse("argument", "give one word")
        if not all(name.strip() == name != "" for name in self.parameters or ()):
            self._refuse("parameters", "give the names of arguments")
        if "\n" in self.description or not self.description.strip():
            self._refuse("description", "give one line")
        for field in ("calls_per_turn", "calls_per_episode"):
            limit = getattr(self, field)
            if limit is not None and limit < 1:
                self._refuse(field, "give at least 1, or None for no limit")
        if self.timeout is not None and self.timeout <= 0:
            self._refuse("timeout", "give more than 0 seconds")

    def _refuse(self, name: str, rule: str) -> NoReturn:
        raise SettingsError(f"tool {self.name!r}: {name}={getattr(self, name)!r}: {rule}.")

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that affects what a player can do, for the rules hash."""
        return (
            self.name,
            self.description,
            self.argument if self.parameters is None else self.parameters,
            self.calls_per_turn,
            self.calls_per_episode,
            self.version,
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of all arguments."""
        return (self.argument,) if self.parameters is None else self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a call."""

    text: str
    """The result, or what is wrong and what is allowed."""
    error: CallError | None = None


def run_tool(tool: Tool, argument: str, seconds: float) -> Outcome:
    """Call a tool; whatever it does, this returns an outcome.

    Args:
        tool: The tool.
        argument: Its argument.
        seconds: Time limit, if it is slow.
    """
    if not tool.slow:
        return _call(tool, argument)
    thread_name = f"tool {tool.name}"
    # Calls of other games that are still within their time limit do not count.
    with _late_lock:
        _late[:] = [thread for thread in _late if thread.is_alive()]
        num_stuck = sum(thread.name == thread_name for thread in _late)
    if num_stuck >= MAX_STUCK:
        return Outcome(
            text=f"{tool.name}: {num_stuck} earlier calls have not returned; go on without it.",
            error=CallError.TIMEOUT,
        )
    answers: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    is_prepared = threading.Event()

    def work() -> None:
        _seconds.set(seconds)
        answers.put(_prepared_call(tool, argument, is_prepared))

    # A daemon thread, so that a call that never returns does not keep its process alive.
    thread = threading.Thread(target=work, name=thread_name, daemon=True)
    thread.start()
    is_prepared.wait(timeout=_PREPARE_SECONDS)
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        with _late_lock:
            _late.append(thread)
        return Outcome(
            text=f"{tool.name}: no result within {seconds:g} s; go on without it.",
            error=CallError.TIMEOUT,
        )


def call_seconds() -> float:
    """Return the time limit of the call in progress in seconds, for a tool that passes it on."""
    return _seconds.get()


def _prepared_call(tool: Tool, argument: str, is_prepared: threading.Event) -> Outcome:
    try:
        if tool.prepare is not None:
            tool.prepare()
    except (Exception, SystemExit) as error:
        return _failed(tool, error)
    finally:
        is_prepared.set()
    return _call(tool, argument)


def _call(tool: Tool, argument: str) -> Outcome:
    try:
        result = tool.run(argument)
    except ToolError as error:
        return Outcome(text=_clean(f"{tool.name}: {error}"), error=CallError.BAD_CALL)
    # A custom function may raise anything; argparse exits on an invalid argument.
    except (Exception, SystemExit) as error:
        return _failed(tool, error)
    if not isinstance(result, str):
        reason = f"it returned {type(result).__name__}, not a text"
        return Outcome(text=f"{tool.name} failed: {reason}", error=CallError.FAILED)
    return Outcome(text=_clean(result))


def _failed(tool: Tool, error: BaseException) -> Outcome:
    reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
    return Outcome(text=_clean(f"{tool.name} failed: {reason}"), error=CallError.FAILED)


def _clean(text: str) -> str:
    """Return a text that is safe in a prompt: not too long, valid UTF-8, no special tokens."""
    if len(text) > MAX_RESULT:
        text = text[: MAX_RESULT - len(_CUT)] + _CUT
    return without_markup(encodable(text))
