"""The client's side of the rollout server's HTTP routes: sessions, adapters, games and single
replies.

Every call has a time limit, names the server in its errors, and is retried only where a repeat is
harmless. A server that is busy for others is asked again for a while, see `ClientTimeouts.busy`.
One that was not reached, hung up or did not answer in time is a `ServerGoneError`; everything else
that it may answer is a `ServerError`, and asking again cannot help."""

import hashlib
import json
import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from hanabi_grpo.client.answers import RolloutResult, checked_games
from hanabi_grpo.client.calls import MAX_ANSWER, WHO, bounded_client, call
from hanabi_grpo.client.fleet import server_url
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.handshake import PROTOCOL, game_claims, session_headers, tokenizer_hash
from hanabi_grpo.rollout.messages import (
    ReplyAnswer,
    ReplyRequest,
    RolloutAnswer,
    RolloutRequest,
    ScoreAnswer,
    ScoredPrompt,
    ScoreRequest,
    TaskRequest,
    read_tasks,
)
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.runs.adapter_config import config_digest, frozen_name
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import seat_adapter
from hanabi_grpo.types import Reply

logger = logging.getLogger(__name__)
_TRIES = 3
_PLAYER_BYTES = 4 << 20
"""Of one player's part of a game: 40,960 tokens at 30 bytes for id and logprob, and as much text
again, fit twice.
"""
_UPLOAD_PACE = 1 << 20
"""Bytes a second of the slowest link that an adapter may be pushed over."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """Longest waits, in seconds, each for a whole call: until the last byte of its answer."""

    connect: float = 5.0
    health: float = 5.0
    """For health and the release of a session."""
    answer: float = 60.0
    """For every other answer but games; an upload has a second more for each MiB."""
    rollout: float = 1800.0
    """For the games of one request."""
    busy: float = 1800.0
    """For guests of the server to be done with what a call needs; health and releases do not
    wait.
    """


class _Session(Struct):
    """What is read of the answer to a session's request, which is the server's whole identity."""

    instance_id: str
    session_timeout: Annotated[float, Meta(gt=0)]
    versions: dict[str, int]


class _Log(Struct):
    next: int
    lines: list[str]


class _Receipt(Struct):
    """What the server serves of one adapter: the digests are of the tensors as loaded and of
    `config_digest`.
    """

    version: int
    sha256: str
    config_sha256: str
    lora_name: str


class _Commit(Struct):
    instance_id: str
    receipts: dict[str, _Receipt]


class RolloutClient:
    """One connection to one rollout server; used as a context it releases its session at the end.

    Its methods raise ServerError, also where a receipt or an answer is not for what was sent.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, timeouts: ClientTimeouts | None = None
    ) -> None:
        """Prepare a client of e.g. "http://127.0.0.1:8000"; nothing is sent yet."""
        self.url = url
        self.trainer_id = uuid.uuid4().hex
        """Names this trainer process to the server, which works for one at a time."""
        self._secret = secrets.token_hex(32)
        self.session_timeout: float | None = None
        """Seconds of silence after which the server lets another trainer in; None without a
        session.
        """
        self._limits = limits = timeouts or ClientTimeouts()
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        short = httpx.Timeout(limits.health, connect=min(limits.connect, limits.health))
        self._short: dict[str, Any] = {"tries": 1, "patience": 0.0, "timeout": short}
        answer_timeout = httpx.Timeout(limits.answer, connect=limits.connect)
        self._http = bounded_client(base_url=url, headers=headers, timeout=answer_timeout)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Prepare a client for the server that the settings name."""
        key = settings.api_key.get_secret_value() if settings.api_key else None
        seconds = settings.rollout_timeout
        return cls(
            server_url(settings),
            api_key=key,
            timeouts=ClientTimeouts(rollout=seconds, busy=seconds),
        )

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries: the key, and from `open_session` on the names of run and
        trainer.
        """
        names = ("authorization", "x-run-id", "x-trainer-id")
        return {name: self._http.headers[name] for name in names if name in self._http.headers}

    def health(self) -> dict[str, Any]:
        """Return the server's state; ServerGoneError when it is unreachable or its engine is
        dead.
        """
        return self._call(dict, "health check", "GET", "/health/", **self._short)

    def identity(self) -> dict[str, Any]:
        """Return what the server is: instance, base model, dtype, largest rank, versions held."""
        return self._call(dict, "identity", "GET", "/identity/")

    def log(self, after: int) -> tuple[int, list[str]]:
        """Return (the number to ask for next time, the server's log lines from number `after`
        on).
        """
        answer = self._call(_Log, "log", "GET", "/log/", params={"after": after})
        return answer.next, answer.lines

    def introduce(
        self, settings: Settings, *, setups: Sequence[Setup[Any]], **claims: Any
    ) -> dict[str, Any]:
        """Open a session with what these settings say of base model, tokenizer, chat format and
        number format.

        `setups` are the games that this run will ask for; for `claims` see `open_session`.
        """
        # Imported here: it takes seconds, which a health check need not wait for.
        from transformers import AutoTokenizer

        from hanabi_grpo.rollout.chat import ChatFormat
        from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model

        folder = resolve_model(settings.model)
        chat = ChatFormat.from_tokenizer(
            AutoTokenizer.from_pretrained(folder), thinking=settings.thinking
        )
        return self.open_session(
            model_fingerprint=model_fingerprint(folder),
            tokenizer_hash=tokenizer_hash(chat.tokenizer),
            chat_hash=chat.hash,
            dtype=settings.dtype,
            games=game_claims(setups),
            **claims,
        )

    def open_session(
        self, *, run_id: str, secret: str | None = None, **claims: Any
    ) -> dict[str, Any]:
        """Introduce a run; the server compares both sides and refuses what differs, or to work for
        two trainers.

        `run_id` is the path of the run folder, and `secret` its own (`runs.run_secret`); None: one
        of this client, so that no other trainer succeeds it while it lives. `claims` are the other
        fields of `SessionRequest`. Returns the server's identity, the run and the versions that it
        serves of it."""
        try:
            names = session_headers(run_id, self.trainer_id)
        except UnicodeEncodeError as error:
            raise SettingsError(
                f"OUTPUT_DIR={run_id!r}: not UTF-8 text; choose another folder."
            ) from error
        own = {
            "protocol": PROTOCOL,
            "trainer_id": self.trainer_id,
            "secret": secret or self._secret,
        }
        what = "opening a session"
        answer = self._call(
            dict, what, "POST", "/session/", json={**claims, "run_id": run_id, **own}
        )
        try:
            self.session_timeout = read_struct(_Session, answer).session_timeout
        except ValueError as error:
            raise ServerError(
                f"{self.url}: {what}: the answer does not fit ({error}). {WHO}"
            ) from None
        # From here on the server knows whose requests these are, and refuses them once another
        # trainer took over.
        self._http.headers.update(names)
        return answer

    def release(self) -> None:
        """End the session, so that another trainer may open one at once; the adapters stay served.

        Where this fails the server frees itself after HANABI_SESSION_TIMEOUT seconds.
        """
        if self.session_timeout is None:
            return
        try:
            self._call(dict, "releasing the session", "DELETE", "/session/", **self._short)
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
            logger.warning(
                "the session was not released (%s); the server frees itself after a while", problem
            )
        finally:
            self.close()

    def push(
        self, version: int, adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]
    ) -> dict[str, Any]:
        """Upload the safetensors bytes and the PEFT configuration of every adapter, commit, and
        check the receipts.

        Returns: {"instance_id": …, "receipts": {adapter: {"version", "sha256", "config_sha256",
            "lora_name"}}}
        """
        sent = {}
        for name, (body, config) in adapters.items():
            sent[name] = (version, hashlib.sha256(body).hexdigest(), config_digest(config))
            self._upload(f"pushing {name}@{version}", f"/adapters/{name}", version, body, config)
        what = f"committing version {version}"
        answer = self._call(_Commit, what, "POST", "/adapters/commit", params={"version": version})
        for name, pushed in sent.items():
            receipt = answer.receipts.get(name)
            if (
                receipt is None
                or (receipt.version, receipt.sha256, receipt.config_sha256) != pushed
            ):
                raise ServerError(
                    f"{self.url}: receipt for {name} is {receipt}, pushed was version {version} "
                    "with sha256 "
                    f"{pushed[1][:16]}… and config {pushed[2][:16]}…; the server does not serve "
                    "what was trained. "
                    "Restart it."
                )
        return dict(msgspec.to_builtins(answer))

    def lend(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        """Give the server an adapter that it keeps beside those of its session, and check the
        receipt.

        The server holds a few; the least recently used go first. Lending one that it holds costs
        only the upload. Returns the word for its seats, e.g. "frozen_0123456789abcdef@50"."""
        sha256, digest = hashlib.sha256(weights).hexdigest(), config_digest(config)
        name = frozen_name(sha256, config)
        seat = f"{name}@{version}"
        answer = self._upload(f"uploading {seat}", "/frozen/", version, weights, config)
        sent = {
            "seat": seat,
            "name": name,
            "version": version,
            "sha256": sha256,
            "config_sha256": digest,
        }
        if {key: answer.get(key) for key in sent} != sent:
            raise ServerError(
                f"{self.url}: receipt for {seat} is {answer}; the server does not hold what was "
                "uploaded. Restart it."
            )
        return seat

    def reply(self, asked: ReplyRequest) -> Reply:
        """Sample one reply in a conversation; the server remembers nothing of it afterwards."""
        what = f"a reply of {asked.seat}"
        answer = self._call(ReplyAnswer, what, "POST", "/reply/", **self._games(asked))
        named = seat_adapter(asked.seat)
        if not answer.out_of_tokens and answer.version != (named[1] if named else None):
            raise ServerError(
                f"{self.url}: {what}: it came from version {answer.version}. Restart the server."
            )
        return Reply(prompt=asked.prompt, **msgspec.structs.asdict(answer))

    def score(self, seat: str, prompts: Sequence[ScoredPrompt]) -> tuple[tuple[float, ...], ...]:
        """Return per prompt the log-probabilities of its replies, see `ScoreAnswer`.

        A ServerError where the server refused, or its answer is of another version or not one
        number a reply."""
        what = f"scores of {seat}"
        body = ScoreRequest(seat=seat, prompts=tuple(prompts))
        answer = self._call(ScoreAnswer, what, "POST", "/score/", **self._games(body))
        named = seat_adapter(seat)
        wanted = [len(one.replies) for one in prompts]
        if list(map(len, answer.logprobs)) != wanted or answer.version != (
            named[1] if named else None
        ):
            raise ServerError(
                f"{self.url}: {what}: not what was asked for (version {answer.version}). {WHO}"
            )
        return answer.logprobs

    def play(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        num_games: int,
        max_tokens: int,
        temperature: float,
        seats: Sequence[str] | None = None,
    ) -> RolloutResult:
        """Play each task `num_games` times, see `RolloutRequest`.

        Each task is a `TaskRequest` as a mapping; other keys are the caller's own and are not sent.
        One that is named twice gets two groups of different games, numbered on.

        Raises: SettingsError: A task that cannot be played. ServerError: The server refused, no
            game of all could be played, or the answers are not the games that were asked for.
        """
        given = {
            "tasks": [
                {name: task[name] for name in TaskRequest.__struct_fields__ if name in task}
                for task in tasks
            ],
            "num_games": num_games,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seats": seats,
        }
        what = "playing games"
        try:
            request = read_struct(RolloutRequest, given)
        except ValueError as error:
            raise SettingsError(f"{what}: {error}.") from error
        requested = read_tasks(request)
        max_bytes = (
            MAX_ANSWER
            + num_games * sum(one.task.setup.spec.num_players for one in requested) * _PLAYER_BYTES
        )
        answer = self._call(
            RolloutAnswer, what, "POST", "/rollout/", tries=1, **self._games(request, max_bytes)
        )
        try:
            return checked_games(answer, requested)
        except ServerError as error:
            raise ServerError(f"{self.url}: {what}: {error} {WHO}") from error

    def _call(
        self,
        kind: type[_Answer],
        what: str,
        method: str,
        path: str,
        *,
        tries: int = _TRIES,
        patience: float | None = None,
        **sent: Any,
    ) -> _Answer:
        patience = self._limits.busy if patience is None else patience
        return call(
            self.url,
            kind,
            lambda: self._http.request(method, path, **sent),
            what,
            tries=tries,
            patience=patience,
        )

    def _games(self, body: Struct, max_bytes: int = MAX_ANSWER) -> dict[str, Any]:
        """Return how a struct is sent whose answer may take as long as games take."""
        return {
            "content": msgspec.json.encode(body),
            "headers": {"content-type": "application/json"},
            "timeout": httpx.Timeout(self._limits.rollout, connect=self._limits.connect),
            "extensions": {"max_bytes": max_bytes},
        }

    def _upload(
        self, what: str, path: str, version: int, body: bytes, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Upload an adapter; the larger it is the more time it has."""
        headers = {
            "x-sha256": hashlib.sha256(body).hexdigest(),
            "x-peft-config": json.dumps(config),
            "content-type": "application/octet-stream",
        }
        limit = self._limits.answer
        timeout = httpx.Timeout(
            limit, connect=self._limits.connect, read=limit + len(body) / _UPLOAD_PACE
        )
        sent: dict[str, Any] = {
            "params": {"version": version},
            "content": body,
            "headers": headers,
            "timeout": timeout,
        }
        return self._call(dict, what, "PUT", path, **sent)
