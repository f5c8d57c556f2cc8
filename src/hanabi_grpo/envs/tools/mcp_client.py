"""Tools of a server of the Model Context Protocol (https://modelcontextprotocol.io), for players.

The server is a program of this machine that talks over standard input and output. It is started
once to list its tools, and once more in every process that plays, at the first call there. Needs
the extra `mcp`.
"""

import asyncio
import atexit
import concurrent.futures
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from hanabi_grpo.envs.tools.tool import Tool, ToolError
from hanabi_grpo.errors import SettingsError

if TYPE_CHECKING:
    from mcp import Client

_T = TypeVar("_T")

_START_SECONDS = 60.0
"""Until a server has answered its first request."""
_CALL_SECONDS = 60.0
"""Until a call is given up where the tool has no time limit of its own."""
_END_SECONDS = 10.0
"""Until a server that was asked to end is left to itself."""
_INVALID_PARAMS = -32602
"""JSON-RPC 2.0's code of arguments that a server does not take."""
_MAX_TOOLS = 64
_MAX_DESCRIPTION = 500
"""Characters of a tool's description; what is longer is cut."""


_servers: "WeakSet[_Server]" = WeakSet()
"""All servers of this process."""


def end_servers() -> None:
    """End the servers that this process has started; a later call starts its server again."""
    for server in list(_servers):
        server.end()


atexit.register(end_servers)


def mcp_tools(
    command: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    calls_per_turn: int | None = None,
    calls_per_episode: int | None = None,
) -> tuple[Tool, ...]:
    """Return the tools of an MCP server, for `Environment.tools`.

    A result must depend on the arguments alone. A server that remembers earlier calls lets players
    write to each other, across episodes too, and its answers in training cannot be repeated.

    Example:
        mcp_tools(["uvx", "mcp-server-time"], names=["convert_time"], calls_per_turn=1)

    Args:
        command: The program and its arguments.
        names: The tools that are offered, in this order; None: all that the server lists.
        env: Environment variables for the server, beside those that MCP hands on (PATH, HOME, …).
        timeout: Seconds of a call; None: HANABI_TOOL_TIMEOUT.
        calls_per_turn: Of each tool, see `Tool`.
        calls_per_episode: Of each tool, see `Tool`.

    Raises:
        SettingsError: The extra `mcp` is not installed, the program does not start or speaks no
            MCP, or it has no tool of a given name.
    """
    server = _Server(tuple(command), dict(env or {}), timeout or _CALL_SECONDS)
    try:
        listed, version = server.ask(_listing, seconds=_START_SECONDS)
    finally:
        server.end()
    by_name = {tool.name: tool for tool in listed}
    wanted = list(by_name) if names is None else list(names)
    unknown = [name for name in wanted if name not in by_name]
    if unknown or not wanted:
        problem = f"no tool {unknown[0]!r}" if unknown else "no tools"
        raise SettingsError(
            f"MCP server {server.name}: {problem}; it lists: {', '.join(by_name) or 'none'}."
        )
    if len(wanted) > _MAX_TOOLS:
        raise SettingsError(
            f"MCP server {server.name}: {len(wanted)} tools; allowed: {_MAX_TOOLS}. Name those "
            "that players need (names=[…])."
        )
    tools = []
    for name in wanted:
        listed_tool = by_name[name]
        schema = listed_tool.input_schema
        digest = hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:12]
        description = " ".join((listed_tool.description or name).split())[:_MAX_DESCRIPTION]
        parameters = tuple(schema.get("properties") or ())
        tools.append(
            Tool(
                name=name.replace("-", "_").replace(".", "_"),
                description=description,
                run=_caller(server, name),
                parameters=parameters,
                slow=True,
                timeout=timeout,
                calls_per_turn=calls_per_turn,
                calls_per_episode=calls_per_episode,
                version=f"{version} {digest}",
            )
        )
    return tuple(tools)


def _caller(server: "_Server", name: str) -> Callable[[str], str]:
    """Return the function that calls a tool with a JSON object of arguments."""

    def call(argument: str) -> str:
        arguments = json.loads(argument)

        async def ask(client: "Client") -> Any:
            return await client.call_tool(name, arguments)

        result = server.ask(ask, seconds=server.call_seconds)
        texts = []
        for part in result.content:
            text = getattr(part, "text", None)
            texts.append(text if isinstance(text, str) else f"({part.type} left out)")
        text = "\n".join(texts)
        if result.is_error:
            raise ToolError(text or "the tool reports an error without a text.")
        return text

    return call


async def _listing(client: "Client") -> tuple[list[Any], str]:
    """Return all tools of a server, and what it calls itself."""
    tools: list[Any] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if not cursor or len(tools) > _MAX_TOOLS:
            break
    info = client.server_info
    return tools, f"{info.name} {info.version}" if info else ""


class _Server:
    """A server, its connection, and the thread with the event loop that both belong to.

    A process that was forked from one with a connection starts a server of its own.
    """

    def __init__(self, command: tuple[str, ...], env: dict[str, str], call_seconds: float) -> None:
        """Start nothing yet.

        Args:
            command: The program and its arguments.
            env: Environment variables for it.
            call_seconds: Until a call is given up.
        """
        if not command:
            raise SettingsError("mcp_tools: command=(): give a program and its arguments.")
        self.command = command
        self.env = env
        self.call_seconds = call_seconds
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        _servers.add(self)

    @property
    def name(self) -> str:
        """The command as one line."""
        return " ".join(self.command)

    def ask(self, request: "Callable[[Client], Awaitable[_T]]", *, seconds: float) -> _T:
        """Return what a request brings; the server is started where none is running.

        Args:
            request: Is given the client, in the thread of the connection.
            seconds: Until it is given up.

        Raises:
            SettingsError: The server does not start.
            TimeoutError: It did not answer in time.
        """
        with self._lock:
            connection = self._connection
            if connection is None or not connection.is_usable():
                connection = self._connection = _Connection(self)
        return connection.run(request, seconds)

    def end(self) -> None:
        """End the server; the next request starts it again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection:
    """One run of a server."""

    def __init__(self, server: _Server) -> None:
        """Start the server and wait until it has answered.

        Raises:
            SettingsError: It does not.
        """
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._lock = threading.Lock()
        self._is_ending = False
        """Set before the loop is asked to end: a request that came later would never run."""
        self._client: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(server,), name=f"MCP server {server.command[0]}", daemon=True
        )
        self._thread.start()
        try:
            self._client.result(timeout=_START_SECONDS)
        except SettingsError:
            raise
        except (Exception, concurrent.futures.CancelledError) as error:
            self.close()
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise SettingsError(
                f"MCP server {server.name}: it does not start ({reason}). Run the command by hand: "
                "it must speak MCP over standard input and output."
            ) from error

    def is_usable(self) -> bool:
        """Return whether it was made by this process and nobody has begun to end it."""
        is_own = self._pid == os.getpid()
        return is_own and not self._is_ending and self._thread.is_alive()

    def run(self, request: "Callable[[Client], Awaitable[_T]]", seconds: float) -> _T:
        """Return what a request brings, see `_Server.ask`."""
        client = self._client.result()

        async def answered() -> _T:
            return await asyncio.wait_for(request(client), seconds)

        from mcp import MCPError

        with self._lock:
            if not self.is_usable():
                raise ConnectionError("the MCP server has ended")
            answer = asyncio.run_coroutine_threadsafe(answered(), self._loop)
        try:
            # The loop may end by itself before it has taken the request up.
            return answer.result(timeout=seconds + _END_SECONDS)
        except Exception as error:
            if isinstance(error, MCPError) and error.code == _INVALID_PARAMS:
                raise ToolError(str(error)) from error
            # A server that has ended fails every request; the next call starts a new one.
            self.close()
            raise

    def close(self) -> None:
        """End the server, and wait for that for a moment."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self.is_usable():
                self._loop.call_soon_threadsafe(self._closing.set)
            self._is_ending = True
        self._thread.join(timeout=_END_SECONDS)

    def _run(self, server: _Server) -> None:
        """Hold the connection, in the thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._hold(server))

    async def _hold(self, server: _Server) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(_client(server))
                self._client.set_result(client)
                await self._closing.wait()
        except Exception as error:
            if not self._client.done():
                self._client.set_exception(error)


def _client(server: _Server) -> "Client":
    try:
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise SettingsError(
            f"MCP server {server.name}: the package mcp from version 2.3 is missing ({error}); "
            "install the extra: pip install 'hanabi-grpo[mcp]'."
        ) from error
    program, *arguments = server.command
    parameters = StdioServerParameters(command=program, args=arguments, env=server.env)
    return Client(parameters, read_timeout_seconds=server.call_seconds)
