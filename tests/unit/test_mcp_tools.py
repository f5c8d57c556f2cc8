"""Tools of an MCP server: listing, calls, errors, and a server that ends.

The server is a real one, `mcp_desk.py`, in a process of its own.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from hanabi_grpo.envs.tools import mcp_client
from hanabi_grpo.envs.tools.calls import call_rules, describe_tools, read_call, write_call
from hanabi_grpo.envs.tools.mcp_client import end_servers, mcp_tools
from hanabi_grpo.envs.tools.tool import Outcome, Tool, run_tool
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import CallError
from waiting import wait_until

SERVER = Path(__file__).parents[1] / "mcp_desk.py"
COMMAND = (sys.executable, str(SERVER))
SECONDS = 60.0


def children_with(argument: str) -> set[int]:
    """Return the running children of this process that have an argument."""
    running = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if argument in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                running.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return running


def desk_processes() -> set[int]:
    """Return the servers that are children of this process."""
    return children_with(str(SERVER))


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, Tool]]:
    before = desk_processes()
    listed = mcp_tools(COMMAND, env={"DESK_MARK": "!"}, calls_per_turn=2)
    assert desk_processes() == before, "the server that listed its tools has ended"
    yield {tool.name: tool for tool in listed}
    end_servers()
    assert desk_processes() == before


def call(tool: Tool, **arguments: object) -> Outcome:
    return run_tool(tool, json.dumps(arguments), SECONDS)


def test_tools_are_listed_with_their_arguments_and_calls_bring_results(
    tools: dict[str, Tool],
) -> None:
    assert list(tools) == [
        "add",
        "shout",
        "refuse",
        "crash",
        "forecast",
        "process",
        "sleep_for",
    ]
    add = tools["add"]
    assert add.parameters == ("first", "second")
    assert add.description == "Adds two whole numbers."
    assert add.slow
    assert add.calls_per_turn == 2
    assert add.version.startswith("desk 1.5 ")
    assert call(add, first=3, second=4) == Outcome(text="7")
    assert call(tools["shout"], text="hey") == Outcome(text="HEY!")


def test_a_reply_calls_with_several_arguments_and_reads_what_is_wrong(
    tools: dict[str, Tool],
) -> None:
    offered = list(tools.values())
    reply = write_call(tools["add"], '{"first": 1, "second": 2}', short=False)
    assert reply == (
        '<tool_call>{"name": "add", "arguments": {"first": 1, "second": 2}}</tool_call>'
    )
    wanted = read_call(reply, offered)
    assert wanted is not None
    assert wanted.tool is tools["add"]
    assert run_tool(wanted.tool, wanted.argument, SECONDS).text == "3"
    assert "- add(first, second): Adds two whole numbers. (at most 2 a turn)" in describe_tools(
        offered, 4
    )
    assert '{"name": "process", "arguments": {}}' in call_rules(offered, short=False)
    bad = read_call('<tool_call>{"name": "add", "arguments": {"third": 1}}</tool_call>', offered)
    assert bad is not None
    assert bad.refusal is not None
    assert bad.refusal.error is CallError.BAD_CALL
    assert 'add takes "arguments", an object with first, second' in bad.refusal.text
    none = read_call('<tool_call>{"name": "process"}</tool_call>', offered)
    assert none is not None
    assert none.argument == "{}"


def test_errors_of_a_tool_are_told_to_the_player(tools: dict[str, Tool]) -> None:
    refused = call(tools["refuse"])
    assert refused.error is CallError.BAD_CALL
    assert "this tool is closed today" in refused.text
    wrong = call(tools["add"], first="three", second=4)
    assert wrong.error is CallError.BAD_CALL
    assert "first" in wrong.text
    pid = call(tools["process"]).text
    late = run_tool(tools["sleep_for"], '{"seconds": 1.5}', 0.2)
    assert late.error is CallError.TIMEOUT
    assert call(tools["process"]).text == pid, "an error does not restart the server"


def test_a_call_that_times_out_or_fails_ends_no_other_call(tools: dict[str, Tool]) -> None:
    pid = call(tools["process"]).text
    with ThreadPoolExecutor(max_workers=2) as pool:
        slow = pool.submit(run_tool, tools["sleep_for"], '{"seconds": 2}', SECONDS)
        late = run_tool(tools["sleep_for"], '{"seconds": 4}', 0.5)
        assert late.error is CallError.TIMEOUT
        assert slow.result().text == "awake"
    crash = call(tools["crash"])
    assert crash.error is CallError.FAILED
    assert "an internal error" in crash.text
    assert call(tools["process"]).text == pid


def test_a_result_that_does_not_match_the_schema_of_its_tool_ends_no_other_call(
    tools: dict[str, Tool],
) -> None:
    pid = call(tools["process"]).text
    with ThreadPoolExecutor(max_workers=1) as pool:
        slow = pool.submit(run_tool, tools["sleep_for"], '{"seconds": 2}', SECONDS)
        forecast = call(tools["forecast"])
        assert forecast.error is CallError.FAILED
        assert "Invalid structured content returned by tool forecast" in forecast.text
        assert slow.result().text == "awake"
    assert call(tools["process"]).text == pid


def test_starting_the_server_does_not_count_as_time_of_the_call() -> None:
    [process] = mcp_tools(COMMAND, names=["process"])
    # The server has listed its tools and ended; starting it takes longer than this call may.
    outcome = run_tool(process, "{}", 0.5)
    assert outcome.error is None
    assert int(outcome.text) in desk_processes()
    end_servers()


def test_calls_of_many_games_run_beside_each_other(tools: dict[str, Tool]) -> None:
    with ThreadPoolExecutor(max_workers=12) as pool:
        sums = list(pool.map(lambda number: call(tools["add"], first=number, second=1), range(12)))
    assert [int(outcome.text) for outcome in sums] == list(range(1, 13))


@pytest.mark.rest
def test_a_server_that_has_died_fails_a_call_and_is_started_again(tools: dict[str, Tool]) -> None:
    pid = int(call(tools["process"]).text)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while True:
        outcome = call(tools["process"])
        if outcome.error is None:
            break
        assert outcome.error is CallError.FAILED
        assert time.monotonic() < deadline
    assert int(outcome.text) != pid


@pytest.mark.rest
def test_a_server_that_hangs_is_replaced(tools: dict[str, Tool]) -> None:
    pid = int(call(tools["process"]).text)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert run_tool(tools["process"], "{}", 0.5).error is CallError.TIMEOUT
        deadline = time.monotonic() + SECONDS
        while True:
            outcome = run_tool(tools["process"], "{}", 2.0)
            if outcome.error is None:
                break
            assert time.monotonic() < deadline
            time.sleep(1.0)
        assert int(outcome.text) != pid
        while pid in desk_processes():
            assert time.monotonic() < deadline, "the server that hung still exists"
            time.sleep(0.2)
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def silent_program() -> Iterator[tuple[str, str]]:
    """A program that never speaks MCP, and does not end when its input does."""
    seconds = "300.25"
    yield "sleep", seconds
    for pid in children_with(seconds):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.rest
def test_a_program_that_does_not_respond_at_its_start_is_stopped(
    silent_program: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_client, "_START_SECONDS", 1.0)
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"it does not start \(TimeoutError\)"):
            mcp_tools(silent_program)
        assert children_with(silent_program[1]) == set()
        names = [thread.name for thread in threading.enumerate()]
        assert "MCP server sleep" not in names


@pytest.mark.rest
def test_a_program_that_does_not_respond_delays_no_exit(silent_program: tuple[str, str]) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        starts = [pool.submit(mcp_tools, silent_program) for _ in range(2)]
        assert wait_until(lambda: len(children_with(silent_program[1])) == 2)
        began = time.monotonic()
        # As at the exit of a process.
        end_servers()
        for start in starts:
            with pytest.raises(SettingsError, match="it was ended before it responded"):
                start.result()
        assert time.monotonic() - began < 30, "it does not wait until their starts time out"
    assert children_with(silent_program[1]) == set()


@pytest.mark.rest
def test_what_cannot_be_offered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no tool 'subtract'; it lists: add, shout, refuse"):
        mcp_tools(COMMAND, names=["add", "subtract"])
    with pytest.raises(SettingsError, match=r"no-such-program: it does not start \(.*by hand"):
        mcp_tools([str(tmp_path / "no-such-program")])
    with pytest.raises(SettingsError, match="it does not start"):
        mcp_tools([sys.executable, "-c", "print('hello')"])
    with pytest.raises(SettingsError, match="give a program and its arguments"):
        mcp_tools([])
