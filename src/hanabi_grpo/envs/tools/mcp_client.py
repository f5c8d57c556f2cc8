"""Tools from a Model Context Protocol server (https://modelcontextprotocol.io), for players.

The server is a program on this machine that communicates over standard input and output. It is
started once to list its tools, and again in every process that plays, on the first call there.
Needs the extra `mcp`.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from hanabi_grpo.envs.tools.tool import Tool, ToolError, call_seconds
from hanabi_grpo.errors import SettingsError

if TYPE_CHECKING:
    from anyio import CancelScope
    from mcp import Client

_T = TypeVar("_T")

_START_SECONDS = 60.0
"""Time limit for a server's first response."""
_SIGN_OF_LIFE_SECONDS = 5.0
"""Time limit for listing the tools after a call that timed out or failed."""
_END_SECONDS = 10.0
"""Time limit for a server to shut down."""
_INVALID_PARAMS = -32602
"""JSON-RPC 2.0 error code for invalid arguments."""
_CONNECTION_CLOSED = -32000
"""Code of the client's error when the server has ended."""
_MAX_TOOLS = 64
_MAX_DESCRIPTION = 500
"""Maximum length of a tool's description; longer ones are truncated."""


_servers: "WeakSet[_Server]" = WeakSet()
"""All servers in this process."""


def end_servers() -> None:
    """Stop all servers that this process started, also those that have not responded yet.

    A later call starts its server again.
    """
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

    A result must depend only on the arguments. A server that remembers earlier calls would let
    players communicate, even across episodes, and would make training irreproducible.

    Example:
        mcp_tools(["uvx", "mcp-server-time"], names=["convert_time"], calls_per_turn=1)

    Args:
        command: The program and its arguments.
        names: The tools to offer, in this order; None: all tools that the server lists.
        env: Environment variables for the server, in addition to those that MCP passes through
            (PATH, HOME, …).
        timeout: Time limit of a call in seconds; None: HANABI_TOOL_TIMEOUT.
        calls_per_turn: Limit for each tool; see `Tool`.
        calls_per_episode: Limit for each tool; see `Tool`.

    Raises:
        SettingsError: The extra `mcp` is not installed, the program does not start or does not
            speak MCP, or it does not have a named tool.
    """
    server = _Server(tuple(command), dict(env or {}))
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
            f"MCP server {server.name}: {len(wanted)} tools; allowed: {_MAX_TOOLS}. Select the "
            "tools that players need (names=[…])."
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
                prepare=server.start,
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

        result = server.ask(ask, seconds=call_seconds())
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
    """Return all tools of a server, and its name and version."""
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
    """A server with its connection, which runs in a thread with its own event loop.

    A process that was forked from one with a connection starts its own server.
    """

    def __init__(self, command: tuple[str, ...], env: dict[str, str]) -> None:
        """Configure the server without starting it.

        Args:
            command: The program and its arguments.
            env: Environment variables for it.
        """
        if not command:
            raise SettingsError("mcp_tools: command=(): give a program and its arguments.")
        self.command = command
        self.env = env
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        _servers.add(self)

    @property
    def name(self) -> str:
        """The command as one line."""
        return " ".join(self.command)

    def start(self) -> None:
        """Start the server if it is not running.

        Raises:
            SettingsError: The server does not start.
        """
        self._connected()

    def ask(self, request: "Callable[[Client], Awaitable[_T]]", *, seconds: float) -> _T:
        """Return the result of a request, starting the server if it is not running.

        Args:
            request: Called with the client, in the thread of the connection.
            seconds: Time limit.

        Raises:
            SettingsError: The server does not start.
            TimeoutError: The server did not respond in time.
        """
        return self._connected().run(request, seconds)

    def _connected(self) -> "_Connection":
        with self._lock:
            if self._connection is None or not self._connection.is_usable():
                self._connection = _Connection(self)
            connection = self._connection
        # Without the lock, so that `end` can stop a server that does not respond.
        connection.wait_until_started()
        return connection

    def end(self) -> None:
        """Stop the server; the next request starts it again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection:
    """One run of a server."""

    def __init__(self, server: _Server) -> None:
        """Start the server, without waiting for it."""
        self._name = server.name
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._scope: CancelScope | None = None
        """Cancels the start of the server; set in the thread."""
        self._lock = threading.Lock()
        self._is_ending = False
        """Set before the loop is asked to stop, because a later request would never run."""
        self._client: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(server,), name=f"MCP server {server.command[0]}", daemon=True
        )
        self._thread.start()

    def wait_until_started(self) -> None:
        """Wait for the server's first response.

        Raises:
            SettingsError: The server does not start or respond, or is ended meanwhile.
        """
        try:
            self._client.result(timeout=_START_SECONDS)
        except SettingsError:
            raise
        except BaseException as error:
            # After Ctrl-C too: the server has a process group of its own and would go on.
            self.close()
            if not isinstance(error, Exception):
                raise
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise SettingsError(
                f"MCP server {self._name}: it does not start ({reason}). Run the command by hand: "
                "it must speak MCP over standard input and output."
            ) from error

    def is_usable(self) -> bool:
        """Return whether this process created the connection and it is not being closed."""
        is_own = self._pid == os.getpid()
        return is_own and not self._is_ending and self._thread.is_alive()

    def run(self, request: "Callable[[Client], Awaitable[_T]]", seconds: float) -> _T:
        """Return the result of a request; see `_Server.ask`.

        A failed call ends only itself: the server goes on with those of other games, unless it has
        ended or responds to nothing any more. Then the next call starts a new one.
        """
        from mcp import MCPError

        try:
            return self._answer(request, seconds)
        except MCPError as error:
            if error.code == _INVALID_PARAMS:
                raise ToolError(str(error)) from error
            if error.code == _CONNECTION_CLOSED:
                self.close()
            raise
        except Exception:
            # It is late, or the client rejects its result, e.g. one that does not match the
            # schema of the tool.
            if not self._responds():
                self.close()
            raise

    def _answer(self, request: "Callable[[Client], Awaitable[_T]]", seconds: float) -> _T:
        client = self._client.result()

        async def answered() -> _T:
            return await asyncio.wait_for(request(client), seconds)

        with self._lock:
            if not self.is_usable():
                raise ConnectionError("the MCP server has ended")
            answer = asyncio.run_coroutine_threadsafe(answered(), self._loop)
        # The loop may stop before it has started the request.
        return answer.result(timeout=seconds + _END_SECONDS)

    def _responds(self) -> bool:
        """Return whether the server still lists its tools."""

        async def list_again(client: "Client") -> None:
            await client.list_tools(cache_mode="bypass")

        try:
            self._answer(list_again, _SIGN_OF_LIFE_SECONDS)
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Stop the server, and wait a limited time for it to end."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self.is_usable():
                # The loop is closed if the server has just ended by itself.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._stop)
            self._is_ending = True
        self._thread.join(timeout=_END_SECONDS)

    def _stop(self) -> None:
        """Let `_hold` end the server; runs in the thread."""
        self._closing.set()
        if self._scope is not None and not self._client.done():
            self._scope.cancel()

    def _run(self, server: _Server) -> None:
        """Keep the connection open; runs in the thread."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._hold(server))

    async def _hold(self, server: _Server) -> None:
        try:
            connected = _client(server)
            from anyio import CancelScope

            # This cancels the start but not its cleanup, which ends the program: `Task.cancel`
            # would interrupt both.
            with CancelScope() as self._scope:
                if self._closing.is_set():
                    return
                async with connected as client:
                    self._client.set_result(client)
                    await self._closing.wait()
        except Exception as error:
            if not self._client.done():
                self._client.set_exception(error)
        finally:
            if not self._client.done():
                self._client.set_exception(ConnectionError("it was ended before it responded"))


def _client(server: _Server) -> "Client":
    try:
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise SettingsError(
            f"MCP server {server.name}: the package mcp, version 2.3 or later, is missing "
            f"({error}); install the extra: pip install 'hanabi-grpo[mcp]'."
        ) from error
    program, *arguments = server.command
    parameters = StdioServerParameters(command=program, args=arguments, env=server.env)
    return Client(parameters)
