"""The session part of the rollout server's HTTP routes: what every client asks, and a trainer that introduces its run.

Every call has a time limit, names the server in its errors, and is retried only where a repeat is harmless. A server
that is busy for others is asked again for a while, see `ClientTimeouts.busy`. One that was not reached, hung up or did
not answer in time is a `ServerGoneError`; everything else that it may answer is a `ServerError`, and asking again
cannot help.
"""

import logging
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Self, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from hanabi_grpo.client.http_bounds import MAX_ANSWER, bounded_client
from hanabi_grpo.client.http_calls import call_bytes, read_answer
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.handshake import PROTOCOL, game_claims, session_headers, tokenizer_hash
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.values import split_address

logger = logging.getLogger(__name__)
_TRIES = 3
_Answer = TypeVar("_Answer")
Request = Callable[[], httpx.Response]


def server_url(settings: Settings) -> str:
    """Return the address of the server, or of the first of several, e.g. "http://127.0.0.1:8000"."""
    return f"http://{server_name(each_server(settings)[0])}"


def each_server(settings: Settings) -> tuple[Settings, ...]:
    """Return the settings once for each server of VLLM_SERVER_HOST; each names one host and its port.

    Raises:
        SettingsError: No such list.
    """
    found = []
    try:
        for word in settings.vllm_server_host.split(","):
            host, port = split_address(word)
            one = {"vllm_server_host": host, "vllm_server_port": port or settings.vllm_server_port}
            found.append(settings.model_copy(update=one))
    except ValueError as error:
        raise SettingsError(f"VLLM_SERVER_HOST={settings.vllm_server_host!r}: {error}.") from error
    names = [server_name(one) for one in found]
    if len(set(names)) < len(names):
        raise SettingsError(
            f"VLLM_SERVER_HOST={settings.vllm_server_host!r} means {', '.join(names)}: name each server once."
        )
    return tuple(found)


def server_name(settings: Settings) -> str:
    """Return the host and port of settings that name one server, e.g. "gpu7:8000"."""
    host = f"[{settings.vllm_server_host}]" if ":" in settings.vllm_server_host else settings.vllm_server_host
    return f"{host}:{settings.vllm_server_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """Longest waits, in seconds, each for a whole call: until the last byte of its answer."""

    connect: float = 5.0
    health: float = 5.0
    """For health, heartbeats and the release of a session."""
    answer: float = 60.0
    """For every other answer but games; an upload has a second more for each MiB."""
    rollout: float = 1800.0
    """For the games of one request."""
    busy: float = 1800.0
    """For guests of the server to be done with what a call needs; health, heartbeats and releases do not wait."""


class _Session(Struct):
    """What the server answers to a session's request; it holds the whole identity beside these."""

    instance_id: str
    session_timeout: Annotated[float, Meta(gt=0)]
    """Seconds of silence after which another trainer may take over."""
    versions: dict[str, int]


class _Log(Struct):
    next: int
    lines: list[str]


class SessionClient:
    """One connection to one rollout server; used as a context it releases its session at the end."""

    def __init__(self, url: str, *, api_key: str | None = None, timeouts: ClientTimeouts | None = None) -> None:
        """Prepare a client of e.g. "http://127.0.0.1:8000"; nothing is sent yet."""
        self.url = url
        self.trainer_id = uuid.uuid4().hex
        """Names this trainer process to the server, which works for one at a time."""
        self._secret = secrets.token_hex(32)
        self.session_timeout: float | None = None
        """Seconds of silence after which the server lets another trainer in; None without a session."""
        limits = timeouts or ClientTimeouts()
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._patience = limits.busy
        self._rollout_timeout = httpx.Timeout(limits.rollout, connect=limits.connect)
        self._short_timeout = httpx.Timeout(limits.health, connect=min(limits.connect, limits.health))
        self._answer_timeout = httpx.Timeout(limits.answer, connect=limits.connect)
        self._http = bounded_client(base_url=url, headers=headers, timeout=self._answer_timeout)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Prepare a client for the server that the settings name."""
        key = settings.api_key.get_secret_value() if settings.api_key else None
        seconds = settings.rollout_timeout
        return cls(server_url(settings), api_key=key, timeouts=ClientTimeouts(rollout=seconds, busy=seconds))

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries: the key, and from `open_session` on the names of run and trainer."""
        names = ("authorization", "x-run-id", "x-trainer-id")
        return {name: self._http.headers[name] for name in names if name in self._http.headers}

    def health(self) -> dict[str, Any]:
        """Return the server's state; ServerGoneError when it is unreachable or its engine is dead."""
        request = partial(self._http.get, "/health/", timeout=self._short_timeout)
        return self._call(dict, request, "health check", tries=1, patient=False)

    def identity(self) -> dict[str, Any]:
        """Return what the server is: instance, base model, dtype, largest rank, versions held."""
        return self._call(dict, lambda: self._http.get("/identity/"), "identity")

    def log(self, after: int) -> tuple[int, list[str]]:
        """Return (the number to ask for next time, the server's log lines from number `after` on)."""
        answer = self._call(_Log, lambda: self._http.get("/log/", params={"after": after}), "log")
        return answer.next, answer.lines

    def introduce(self, settings: Settings, *, setups: Sequence[Setup[Any]], **claims: Any) -> dict[str, Any]:
        """Open a session with what these settings say of base model, tokenizer, chat format and number format.

        Args:
            settings: MODEL, HANABI_THINKING and HANABI_DTYPE.
            setups: The games that this run will ask for.
            claims: The other fields of `SessionRequest`, see `open_session`.
        """
        # Imported here: it takes seconds, which a health check need not wait for.
        from transformers import AutoTokenizer

        from hanabi_grpo.rollout.chat import ChatFormat
        from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model

        folder = resolve_model(settings.model)
        chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder), thinking=settings.thinking)
        return self.open_session(
            model_fingerprint=model_fingerprint(folder),
            tokenizer_hash=tokenizer_hash(chat.tokenizer),
            chat_hash=chat.hash,
            dtype=settings.dtype,
            games=game_claims(setups),
            **claims,
        )

    def open_session(self, *, run_id: str, secret: str | None = None, **claims: Any) -> dict[str, Any]:
        """Introduce a run; the server compares both sides and refuses what differs.

        Args:
            run_id: Path of the run folder.
            secret: Of the run folder, see `runs.run_secret`; None: one of this client, so that no other trainer
                succeeds it while it lives.
            claims: The other fields of `SessionRequest` but `protocol` and `trainer_id`.

        Returns:
            The server's identity, the run and the versions that it serves of it.

        Raises:
            SettingsError: A run id that cannot travel.
            ServerError: The sides differ, or the server works for another trainer.
        """
        try:
            names = session_headers(run_id, self.trainer_id)
        except UnicodeEncodeError as error:
            raise SettingsError(f"OUTPUT_DIR={run_id!r}: not UTF-8 text; choose another folder.") from error
        own = {"protocol": PROTOCOL, "trainer_id": self.trainer_id, "secret": secret or self._secret}
        body = {**claims, "run_id": run_id, **own}
        content = self._bytes(lambda: self._http.post("/session/", json=body), "opening a session")
        answer = read_answer(self.url, _Session, content, "opening a session")
        # From here on the server knows whose requests these are, and refuses them once another trainer took over.
        self._http.headers.update(names)
        self.session_timeout = answer.session_timeout
        return read_answer(self.url, dict, content, "opening a session")

    def heartbeat(self) -> dict[str, Any]:
        """Tell the server that this trainer is alive; ServerError when another has taken over."""
        request = partial(self._http.post, "/session/heartbeat", timeout=self._short_timeout)
        return self._call(dict, request, "heartbeat", tries=1, patient=False)

    def release(self) -> None:
        """End the session, so that another trainer may open one at once; without a session nothing happens.

        The adapters stay served.

        Raises:
            ServerError: The server was not told; it frees itself after HANABI_SESSION_TIMEOUT seconds.
        """
        if self.session_timeout is None:
            return
        try:
            request = partial(self._http.delete, "/session/", timeout=self._short_timeout)
            self._call(dict, request, "releasing the session", tries=1, patient=False)
        finally:
            self.session_timeout = None
            for name in ("x-run-id", "x-trainer-id"):
                self._http.headers.pop(name, None)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the session, if there is one, and close the connection."""
        try:
            self.release()
        except ServerError as problem:
            logger.warning("the session was not released (%s); the server frees itself after a while", problem)
        finally:
            self.close()

    def _call(self, kind: type[_Answer], request: Request, what: str, **how: Any) -> _Answer:
        """Make a request and return its answer as `kind`; `how` as for `_bytes`."""
        return read_answer(self.url, kind, self._bytes(request, what, **how), what)

    def _bytes(self, request: Request, what: str, *, tries: int = _TRIES, patient: bool = True) -> bytes:
        return call_bytes(self.url, request, what, tries=tries, patience=self._patience if patient else 0.0)

    def _games(self, path: str, body: Struct, *, max_bytes: int = MAX_ANSWER) -> Request:
        """Return the request that posts a struct and may take as long as games take."""
        return partial(
            self._http.post,
            path,
            content=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=self._rollout_timeout,
            extensions={"max_bytes": max_bytes},
        )
