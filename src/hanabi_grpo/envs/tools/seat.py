"""The tools of one player in one episode: the calls that it may make and has made."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from hanabi_grpo.envs.tools.calls import WantedCall, read_call, result_message, write_call
from hanabi_grpo.envs.tools.tool import Outcome, Tool, run_tool
from hanabi_grpo.types import CallError, ToolCall


class SeatTools:
    """The tools that one player may call, and its calls in the current turn."""

    def __init__(
        self, tools: Sequence[Tool], *, calls_per_turn: int, timeout: float, short: bool
    ) -> None:
        """Begin an episode.

        Args:
            tools: The tools.
            calls_per_turn: HANABI_TOOL_CALLS.
            timeout: HANABI_TOOL_TIMEOUT.
            short: Whether calls may use the short form, and results do.
        """
        self.tools = tuple(tools)
        self.calls: list[ToolCall] = []
        """Calls of the current turn, oldest first."""
        self._calls_per_turn = calls_per_turn
        self._timeout = timeout
        self._short = short
        self._num_in_episode: Counter[str] = Counter()

    @property
    def calls_left(self) -> int:
        """Number of calls that the player may still make in this turn."""
        return self._calls_per_turn - len(self.calls) if self.tools else 0

    def available(self) -> tuple[Tool, ...]:
        """Return the tools that may be called now."""
        if not self.calls_left:
            return ()
        return tuple(tool for tool in self.tools if not self._is_used_up(tool))

    def read(self, reply: str) -> WantedCall | None:
        """Return the call in a reply, whether or not the turn has a call left."""
        return read_call(reply, self.tools, short=self._short)

    def write(self, tool: Tool, argument: str) -> str:
        """Return the reply that calls a tool."""
        return write_call(tool, argument, short=self._short)

    def run(self, wanted: WantedCall) -> Outcome:
        """Run a call and return its outcome; this blocks the calling thread."""
        if wanted.tool is None:
            return wanted.refusal or Outcome(text="no such tool", error=CallError.UNKNOWN_TOOL)
        if self._is_used_up(wanted.tool):
            others = [tool.name for tool in self.available()]
            return Outcome(
                text=f"no calls of {wanted.name} are left; left: {', '.join(others) or 'none'}.",
                error=CallError.USED_UP,
            )
        seconds = self._timeout if wanted.tool.timeout is None else wanted.tool.timeout
        return run_tool(wanted.tool, wanted.argument, seconds)

    async def run_beside(self, wanted: WantedCall) -> Outcome:
        """Run a call, outside the event loop if it may be slow."""
        if wanted.tool is not None and wanted.tool.slow:
            return await asyncio.to_thread(self.run, wanted)
        return self.run(wanted)

    def add(self, wanted: WantedCall, outcome: Outcome) -> ToolCall:
        """Record a completed call, and return it with the message for the player."""
        self._num_in_episode[wanted.name] += 1
        call = ToolCall(
            tool=wanted.name,
            argument=wanted.argument,
            result=result_message(outcome, self.calls_left - 1, short=self._short),
            error=outcome.error,
        )
        self.calls.append(call)
        return call

    def take_back(self) -> None:
        """Forget the last call of the turn, whose result the player cannot read."""
        self.calls.pop()

    def end_turn(self) -> None:
        """Begin the player's next turn."""
        self.calls.clear()

    def _is_used_up(self, tool: Tool) -> bool:
        in_turn = sum(call.tool == tool.name for call in self.calls)
        if tool.calls_per_turn is not None and in_turn >= tool.calls_per_turn:
            return True
        limit = tool.calls_per_episode
        return limit is not None and self._num_in_episode[tool.name] >= limit
