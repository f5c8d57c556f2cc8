"""How a trainer's client reacts to servers that are silent, broken, or something else."""

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from bad_server import (
    Behaviour,
    accepts_uploads,
    bad_server,
    drips,
    full_backlog,
    http,
    resets,
    says,
    silent,
    stalls,
    timed,
)
from fake_engine import task
from hanabi_grpo.client import calls
from hanabi_grpo.client.heartbeat import Heartbeat
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.errors import ServerError, ServerGoneError
from waiting import wait_until

Injections = Callable[..., Any]
Call = Callable[[RolloutClient], Any]

QUICK = ClientTimeouts(connect=0.15, health=0.15, answer=0.15, rollout=0.25)
COMMIT = replace(QUICK, answer=0.75)
"""For commits: the uploads before them must be answered in time, on a busy machine too."""
PATIENT = ClientTimeouts(rollout=60.0)
BOUND = 8.0
"""Seconds for a call on a busy machine; without a limit of ours it would be minutes or for ever."""
ADAPTERS = {"player_0": (b"x" * 300_000, {"r": 8}), "player_1": (b"y" * 300_000, {"r": 8})}
BASE = ("base", "base")


def _open(client: RolloutClient) -> Any:
    return client.open_session(
        run_id="outputs/run",
        adapters=("player_0", "player_1"),
        lora_rank=8,
        games=[],
        model_fingerprint="x",
        tokenizer_hash="x",
        chat_hash="x",
        dtype="x",
    )


def _release(client: RolloutClient) -> Any:
    # As if a session had been opened before the server broke.
    client.session_timeout = 60.0
    return client.release()


def _play(client: RolloutClient) -> Any:
    return client.play([task(1)], num_games=2, max_tokens=4, temperature=1.0, seats=BASE)


CALLS: dict[str, Call] = {
    "health check": lambda client: client.health(),
    "identity": lambda client: client.identity(),
    "log": lambda client: client.log(0),
    "opening a session": _open,
    "releasing the session": _release,
    "pushing player_0@1": lambda client: client.push(1, ADAPTERS),
    "committing version 1": lambda client: client.push(1, ADAPTERS),
    "playing games": _play,
}
"""Each call under the name that its errors give it."""
REQUESTS_PER_CALL = {
    "pushing player_0@1": len(ADAPTERS),
    "committing version 1": len(ADAPTERS) + 1,
}
"""Requests of the calls that make several: the players' uploads, side by side, then the commit."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other faster, so that an injection can be repeated more often."""
    monkeypatch.setattr(calls, "_PAUSE_SECONDS", 0.01)


def _is_commit(call: str) -> bool:
    return call.startswith("committing")


def _behaviour(call: str, fault: Behaviour) -> Behaviour:
    """Return a server's behaviour so that a call meets the fault, and no call before it does."""
    if _is_commit(call):
        return accepts_uploads(fault)
    return fault


NEXT_STEPS = ("other terminal", "VLLM_SERVER_HOST", "Restart", "the server answered")
"""What a user can do next: each message has one of these."""


def _assert_explained(error: Exception, url: str, call: str) -> None:
    """The error is ours, names server and call, and says what to do."""
    assert isinstance(error, ServerError), repr(error)
    text = str(error)
    assert url in text, text[:300]
    assert call in text, text[:300]
    assert any(step in text for step in NEXT_STEPS), text[:300]
    assert len(text) < 3000, text[:300]


@pytest.mark.parametrize("call", CALLS)
def test_a_black_hole_ends_every_call_within_its_time(call: str, injection: Injections) -> None:
    row = injection(f"black hole: {call}", short=3, long=20, lost="the call")
    timeouts = COMMIT if _is_commit(call) else QUICK
    requests_per_call = REQUESTS_PER_CALL.get(call, 1)
    with bad_server(_behaviour(call, silent)) as server:
        for number in row:
            error, seconds = _call(server.url, call, timeouts)
            assert isinstance(error, ServerGoneError), repr(error)
            _assert_explained(error, server.url, call)
            assert "Is the rollout server running? Look at the other terminal." in str(error)
            assert seconds < BOUND
            assert "1 attempt" in str(error), "a server that took all of its time is asked again"
            expected = (number + 1) * requests_per_call
            assert wait_until(lambda expected=expected: server.asked >= expected, BOUND)
            assert server.asked == expected


def _call(url: str, call: str, timeouts: ClientTimeouts) -> tuple[Exception, float]:
    """Return the error with which a call to a server ends, and the seconds that it took."""
    with contextlib.closing(RolloutClient(url, timeouts=timeouts)) as client:
        return timed(lambda: CALLS[call](client))


def test_an_address_where_nobody_listens_or_answers(injection: Injections) -> None:
    # A commit is never reached there.
    calls = [call for call in CALLS if not _is_commit(call)]
    with socket.socket() as bound, full_backlog() as vanished:
        bound.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{bound.getsockname()[1]}"
        unknown_host = "http://no-such-host.invalid:8000"
        cases = _pairs(calls, [refusing, unknown_host, vanished.url])
        row = injection(
            "connection refused, no such host, vanished machine",
            short=12,
            long=5 * len(cases),
            lost="the call",
        )
        for number in row:
            call, url = cases[number % len(cases)]
            error, seconds = _call(url, call, QUICK)
            assert isinstance(error, ServerGoneError), repr(error)
            _assert_explained(error, url, call)
            # Looking up a name has the time limit of the system's resolver.
            bound_seconds = 60 if url == unknown_host else BOUND
            assert seconds < bound_seconds


_HTML = b"<html><body><h1>It works!</h1></body></html>"
_DEEP = b"[" * 100_000 + b"]" * 100_000
GONE: dict[str, Behaviour] = {
    "hangs up before its answer": says(b""),
    "hangs up in its answer": says(http(b'{"instance_id": "x"', length=4000)),
    "resets in its answer": resets(http(b'{"instance_id": "x"', length=4000)),
    "stalls in its answer": stalls(http(b"{", length=4000)),
    "drips its head": drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "drips its answer": drips(http(b"{", length=1 << 40), b" "),
    "drips answers that announce another one": drips(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "is not HTTP": says(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "answers a head without end": says(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 60_000),
    "502 of a proxy": says(http(_HTML, "502 Bad Gateway")),
    "503, engine dead": says(http(b'{"detail": "engine dead"}', "503 Service Unavailable")),
}
"""Faults that may be over soon: asking again can help."""
REFUSALS: dict[str, Behaviour] = {
    "HTML": says(http(_HTML)),
    "nothing": says(http(b"")),
    "half a JSON": says(http(b'{"instance_id": "x", "ver')),
    "a list of nonsense": says(http(b'[null, 1, "x", {}]')),
    "JSON of enormous depth": says(http(_DEEP)),
    "a number of 100 000 digits": says(http(b"9" * 100_000)),
    "bytes that are no text": says(http(b"\xff\xfe\x00\xd8" * 50)),
    "a wrong gzip": says(
        http(gzip.compress(_HTML)[:-9] + b"123456789", "200 OK", "content-encoding: gzip")
    ),
    "a gzip of 64 MiB": says(
        http(gzip.compress(bytes(64 << 20)), "200 OK", "content-encoding: gzip")
    ),
    "an answer without end": says(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b" " * (34 << 20)
    ),
    "a redirect": says(
        http(b"", "307 Temporary Redirect", "location: http://127.0.0.1:1/elsewhere")
    ),
    "204": says(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"),
    "401": says(
        http(b'{"detail": "wrong or missing key: set HANABI_API_KEY"}', "401 Unauthorized")
    ),
    "409": says(http(b'{"detail": ["a", {"list": 1}]}', "409 Conflict")),
    "500": says(http(b'{"detail": "boom"}', "500 Internal Server Error")),
}
"""Faults that asking again does not change."""
_IS_JSON = ("a list of nonsense",)
"""The refusals that are valid JSON."""


def test_a_server_that_breaks_in_its_answer_is_gone_and_may_come_back(
    injection: Injections,
) -> None:
    cases = _pairs(CALLS, GONE)
    row = injection(
        "hang-ups, cut answers, no HTTP, 502, 503 and 504",
        short=3 * len(GONE),
        long=2 * len(cases),
        lost="the call",
    )
    for number in row:
        call, fault = cases[number % len(cases)]
        timeouts = PATIENT
        if fault.startswith(("stalls", "drips")):
            timeouts = COMMIT if _is_commit(call) else QUICK
        error = _meet(call, GONE[fault], timeouts)
        assert isinstance(error, ServerGoneError), f"{call}, {fault}: {error!r}"


def test_an_answer_that_no_rollout_server_gives_is_refused_with_its_first_characters(
    injection: Injections,
) -> None:
    # Of the answers to these two calls only that they are JSON is checked; a push is checked by its
    # receipts.
    unread = ("releasing the session", "pushing player_0@1")
    cases = []
    for call, fault in _pairs(CALLS, REFUSALS):
        if call not in unread or fault not in _IS_JSON:
            cases.append((call, fault))
    row = injection(
        "HTML, half a JSON, other JSON, redirects, 4xx, 500",
        short=3 * len(REFUSALS),
        long=2 * len(cases),
        lost="the call",
    )
    for number in row:
        call, fault = cases[number % len(cases)]
        error = _meet(call, REFUSALS[fault], PATIENT)
        assert not isinstance(error, ServerGoneError), f"{call}, {fault}: {error!r}"


def _pairs(first: Iterable[str], second: Iterable[str]) -> list[tuple[str, str]]:
    """Return every pair, in an order whose beginning already has each value of both.

    The numbers of values must have no common divisor.
    """
    rows = list(first)
    columns = list(second)
    pairs = []
    for number in range(len(rows) * len(columns)):
        pairs.append((rows[number % len(rows)], columns[number % len(columns)]))
    assert len(set(pairs)) == len(pairs), "add or remove one fault"
    return pairs


def _meet(call: str, fault: Behaviour, timeouts: ClientTimeouts) -> Exception:
    """Return the error with which a call ends, after checking its time and its message."""
    with bad_server(_behaviour(call, fault)) as server:
        error, seconds = _call(server.url, call, timeouts)
    _assert_explained(error, server.url, call)
    assert seconds < BOUND, call
    return error


def test_a_heartbeat_that_meets_any_fault_ends_nothing(injection: Injections) -> None:
    faults = {"black hole": silent, **GONE, **REFUSALS}
    row = injection(
        "heartbeats to every one of these servers",
        short=len(faults),
        long=3 * len(faults),
        lost="the beat",
    )
    names = list(faults)
    threads_before = threading.active_count()
    for number in row:
        fault = names[number % len(names)]
        with bad_server(faults[fault]) as server:
            heartbeat = Heartbeat(server.url, {"x-run-id": "r"}, every=0.05)
            heartbeat.start()
            assert wait_until(lambda beat=heartbeat: _has_an_outcome(beat), BOUND), fault
            start = time.monotonic()
            heartbeat.stop()
            assert time.monotonic() - start < BOUND, fault
            assert bool(heartbeat.lost) == (fault == "409"), (fault, heartbeat.lost)
    all_ended = wait_until(lambda: threading.active_count() <= threads_before, BOUND)
    assert all_ended, "threads stay behind"


def _has_an_outcome(heartbeat: Heartbeat) -> bool:
    return bool(heartbeat.missed or heartbeat.beats or heartbeat.lost)


def test_only_calls_whose_repeat_is_harmless_are_repeated(injection: Injections) -> None:
    heads: list[bytes] = []

    def hangs_up_on_two_of_three(connection: socket.socket, head: bytes) -> None:
        heads.append(head)
        if len(heads) % 3 == 0:
            says(http(b'{"instance_id": "x", "next": 3, "lines": []}'))(connection, head)

    row = injection("a server that hangs up on two of three requests", short=10, long=200)
    with (
        bad_server(hangs_up_on_two_of_three) as server,
        contextlib.closing(RolloutClient(server.url, timeouts=QUICK)) as client,
    ):
        for number in row:
            heads.clear()
            if number % 2:
                assert client.log(0) == (3, [])
                assert len(heads) == 3
            else:
                with pytest.raises(ServerGoneError):
                    _play(client)
                assert len(heads) == 1, "games are never asked for twice in one call"
