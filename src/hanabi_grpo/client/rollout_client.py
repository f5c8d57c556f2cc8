"""The client's side of the rollout server's HTTP routes: sessions, adapters, games and replies.

Every call has a time limit, names the server in its errors, and is retried only if a repeat is
harmless. A server that is busy with other clients is retried for a while, see
`ClientTimeouts.busy`. A server that cannot be reached, closes the connection or does not answer in
time raises `ServerGoneError`; every other failure is a `ServerError`, for which a retry cannot
help.
"""

import hashlib
import json
import logging
import secrets
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Self, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from hanabi_grpo.client.answers import (
    RolloutResult,
    checked_games,
    checked_probe,
    checked_reply,
    checked_scores,
)
from hanabi_grpo.client.calls import MAX_ANSWER, WHO, bounded_client, call
from hanabi_grpo.client.fleet import (
    REQUESTS_AT_ONCE,
    cut_request,
    merge_results,
    server_url,
    side_by_side,
)
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.handshake import PROTOCOL, game_claims, session_headers, tokenizer_hash
from hanabi_grpo.rollout.messages import (
    MAX_REPLIES,
    MAX_SCORED,
    MAX_SCORES,
    ProbeAnswer,
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
from hanabi_grpo.settings.base_models import base_models, bases_by_player
from hanabi_grpo.settings.judge import judge_description
from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter
from hanabi_grpo.types import Reply

logger = logging.getLogger(__name__)
_TRIES = 3
"""Number of tries after lost connections, for calls that may be repeated."""
_PLAYER_BYTES = 4 << 20
"""Maximum bytes of one player's part of a game.

Enough for 40,960 tokens, with 30 bytes each for id and logprob and as many for text, and some room
to spare.
"""
_BYTES_PER_SECOND = 1 << 20
"""Minimum bandwidth of a link over which adapters are pushed."""
_SHOWN_DIGEST = 16
"""Characters of a digest in an error."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """Longest waits, in seconds, each for a whole call: until the last byte of its answer."""

    connect: float = 5.0
    """Time for establishing the connection."""
    health: float = 5.0
    """Time for a health check, and for the release of a session."""
    answer: float = 60.0
    """Time for every other call except games; an upload has one more second per MiB."""
    rollout: float = 1800.0
    """Time for the games of one request."""
    busy: float = 1800.0
    """Time until other clients of the server have released what a call needs.

    Health and releases do not wait.
    """


class _Session(Struct):
    """The fields that are read from the answer to a session request, which is an identity."""

    instance_id: str
    session_timeout: Annotated[float, Meta(gt=0)]
    versions: dict[str, int]


class _Log(Struct):
    """Lines of the server's log."""

    next: int
    """Number of the next line."""
    lines: list[str]


class _Receipt(Struct):
    """The server's receipt for one adapter."""

    version: int
    sha256: str
    """Digest of the tensors as loaded."""
    config_sha256: str
    """See `config_digest`."""
    lora_name: str


class _Commit(Struct):
    """The answer to a commit."""

    instance_id: str
    receipts: dict[str, _Receipt]


def _describe_base(settings: Settings, name: str) -> dict[str, str]:
    """Return the digests of a base model, which the server compares with its own.

    Args:
        settings: Settings with HANABI_THINKING.
        name: The base model, as in MODEL.
    """
    # Imported here: it takes seconds, and a health check does not need it.
    from transformers import AutoTokenizer

    from hanabi_grpo.rollout.chat import ChatFormat
    from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model

    folder = resolve_model(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return {
        "model_fingerprint": model_fingerprint(folder),
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "chat_hash": ChatFormat.from_tokenizer(tokenizer, thinking=settings.thinking).hash,
    }


def weights_digest(weights: bytes) -> str:
    """Return the sha256 of an adapter's bytes, in hexadecimal digits."""
    return hashlib.sha256(weights).hexdigest()


class RolloutClient:
    """One connection to one rollout server; as a context manager it releases its session at exit.

    Its methods raise ServerError, also if a receipt or an answer does not match the request.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeouts: ClientTimeouts | None = None,
        judge: str = "",
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            url: E.g. "http://127.0.0.1:8000".
            api_key: HANABI_API_KEY; None: the server needs none.
            timeouts: Longest waits.
            judge: The judge that a trainer expects on the server, see
                `settings.judge.judge_description`.
        """
        self.url = url
        self._judge = judge
        self.trainer_id = uuid.uuid4().hex
        """Identifies this trainer process to the server, which serves one at a time."""
        self.session_timeout: float | None = None
        """Seconds without requests after which the server accepts another trainer.

        None without a session.
        """
        self._secret = secrets.token_hex(32)
        self._limits = timeouts or ClientTimeouts()
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = bounded_client(
            base_url=url, headers=headers, timeout=self._timeout(self._limits.answer)
        )

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Prepare a client for the server that the settings name."""
        key = settings.api_key.get_secret_value() if settings.api_key else None
        # Games requested ahead wait behind those of earlier steps.
        seconds = settings.rollout_timeout * max(1, settings.overlap)
        return cls(
            server_url(settings),
            api_key=key,
            timeouts=ClientTimeouts(rollout=seconds, busy=seconds),
            judge=judge_description(settings),
        )

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request.

        They are the key and, once `open_session` has succeeded, the names of run and trainer.
        """
        headers = {}
        for name in ("authorization", "x-run-id", "x-trainer-id"):
            if name in self._http.headers:
                headers[name] = self._http.headers[name]
        return headers

    def health(self) -> dict[str, Any]:
        """Return the server's state; ServerGoneError if it is unreachable or its engine is dead."""
        return self._call_briefly("health check", "GET", "/health/")

    def identity(self) -> dict[str, Any]:
        """Return the server's identity: instance, base model, dtype, largest rank, versions."""
        return self._call(dict, "identity", "GET", "/identity/")

    def log(self, after: int) -> tuple[int, list[str]]:
        """Return lines of the server's log.

        Args:
            after: Number of the first line to return, from 0.

        Returns:
            The number to ask for next time, and the lines.
        """
        answer = self._call(_Log, "log", "GET", "/log/", params={"after": after})
        return answer.next, answer.lines

    def introduce(
        self, settings: Settings, *, setups: Sequence[Setup[Any]], **claims: Any
    ) -> dict[str, Any]:
        """Open a session with the base model, tokenizer and formats of these settings.

        Args:
            settings: Settings of the run.
            setups: The games that this run will ask for.
            **claims: See `open_session`.

        Returns:
            The server's identity, the run, and the versions of the run that it serves.
        """
        described = {name: _describe_base(settings, name) for name in base_models(settings)}
        base_of = bases_by_player(settings)
        if base_of:
            claims["bases"] = {player: described[name] for player, name in base_of.items()}
        return self.open_session(
            **next(iter(described.values())),
            dtype=settings.dtype,
            games=game_claims(setups),
            **claims,
        )

    def open_session(
        self, *, run_id: str, secret: str | None = None, **claims: Any
    ) -> dict[str, Any]:
        """Open a session for a run.

        The server compares both sides; it refuses a trainer that does not match, and a second one.

        Args:
            run_id: Path of the run folder.
            secret: Secret of the run folder (`runs.run_secret`); None: a secret of this client, so
                that no other trainer can take over while this one is alive.
            **claims: The other fields of `SessionRequest`.

        Returns:
            The server's identity, the run, and the versions of the run that it serves.
        """
        try:
            names = session_headers(run_id, self.trainer_id)
        except UnicodeEncodeError as error:
            raise SettingsError(
                f"OUTPUT_DIR={run_id!r}: not UTF-8 text; choose another folder."
            ) from error
        request = {
            "judge": self._judge,
            **claims,
            "run_id": run_id,
            "protocol": PROTOCOL,
            "trainer_id": self.trainer_id,
            "secret": secret or self._secret,
        }
        what = "opening a session"
        answer = self._call(dict, what, "POST", "/session/", json=request)
        try:
            session = read_struct(_Session, answer)
        except ValueError as error:
            raise ServerError(f"{self.url}: {what}: unexpected response ({error}). {WHO}") from None
        self.session_timeout = session.session_timeout
        # From here on the server knows who sends these requests, and refuses them after another
        # trainer has taken over.
        self._http.headers.update(names)
        return answer

    def release(self) -> None:
        """End the session, so another trainer may open one at once; the adapters stay served.

        If this fails, the server ends the session after HANABI_SESSION_TIMEOUT seconds.
        """
        if self.session_timeout is None:
            return
        try:
            self._call_briefly("releasing the session", "DELETE", "/session/")
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
                "the session was not released (%s); the server releases it after a timeout", problem
            )
        finally:
            self.close()

    def push(
        self,
        version: int,
        adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]],
        digests: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Upload every adapter, commit them, and check the receipts.

        Args:
            version: Policy version, the optimizer steps behind the weights.
            adapters: Safetensors bytes and PEFT configuration, by name.
            digests: The `weights_digest` by name, if several servers get the same adapters; None:
                they are computed.

        Returns:
            {"instance_id": …, "receipts": {adapter: {"version", "sha256", "config_sha256",
            "lora_name"}}}

        Raises:
            ServerError: A receipt is missing, or does not match the upload.
        """
        pushed: dict[str, tuple[int, str, str]] = {}

        def upload(name: str) -> None:
            weights, config = adapters[name]
            sha256 = weights_digest(weights) if digests is None else digests[name]
            pushed[name] = (version, sha256, config_digest(config))
            what = f"pushing {name}@{version}"
            self._upload(what, f"/adapters/{name}", version, weights, config, sha256=sha256)

        # Each is hashed, sent and checked, which takes seconds for models with billions of
        # parameters.
        side_by_side({f"push of {name}": partial(upload, name) for name in adapters})
        what = f"committing version {version}"
        answer = self._call(_Commit, what, "POST", "/adapters/commit", params={"version": version})
        for name, sent in pushed.items():
            receipt = answer.receipts.get(name)
            if receipt is None:
                served = None
            else:
                served = (receipt.version, receipt.sha256, receipt.config_sha256)
            if served != sent:
                _, sha256, config_sha256 = sent
                raise ServerError(
                    f"{self.url}: receipt for {name} is {receipt}, but version {version} was "
                    f"pushed with sha256 {sha256[:_SHOWN_DIGEST]}… and config "
                    f"{config_sha256[:_SHOWN_DIGEST]}…; the server does not serve what was "
                    "trained. Restart it."
                )
        return dict(msgspec.to_builtins(answer))

    def upload_guest(
        self,
        version: int,
        weights: bytes,
        config: Mapping[str, Any],
        *,
        base: str | None = None,
    ) -> str:
        """Upload a guest adapter, which the server keeps in addition to those of its session.

        The server holds a few and evicts the least recently used. An adapter that it already holds
        costs only the upload.

        Args:
            version: Policy version of the weights.
            weights: safetensors bytes.
            config: PEFT configuration.
            base: Fingerprint of its base model, if the server has several; None: its shapes decide.

        Returns:
            The seat that names it in requests, e.g. "frozen_0123456789abcdef@50". If the server
            holds the same weights as another version, it is that version's.

        Raises:
            ServerError: The server refused it, or its receipt does not match the upload.
        """
        sha256 = weights_digest(weights)
        name = frozen_name(sha256, config)
        seat = f"{name}@{version}"
        what = f"uploading {seat}"
        receipt = self._upload(what, "/frozen/", version, weights, config, sha256=sha256, base=base)
        sent = {"name": name, "sha256": sha256, "config_sha256": config_digest(config)}
        received = {key: receipt.get(key) for key in sent}
        held = receipt.get("seat")
        if received != sent or held != f"{name}@{receipt.get('version')}":
            raise ServerError(
                f"{self.url}: receipt for {seat} is {receipt}; the server does not hold what was "
                "uploaded. Restart it."
            )
        return str(held)

    def reply(self, request: ReplyRequest) -> Reply:
        """Sample one reply in a conversation; the server does not keep any state of it.

        Raises:
            ServerError: The server refused, or the answer does not match this request, see
                `answers.checked_reply`.
        """
        what = f"a reply of {request.seat}"
        answer = self._call(ReplyAnswer, what, "POST", "/reply/", **self._long(request))
        try:
            return checked_reply(answer, request)
        except ServerError as error:
            raise ServerError(f"{self.url}: {error}") from error

    def score(self, seat: str, prompts: Sequence[ScoredPrompt]) -> tuple[tuple[float, ...], ...]:
        """Return the log-probabilities of each prompt's replies, see `ScoreAnswer`.

        Any number of prompts and replies; it makes as many requests as the server's limits need.

        Args:
            seat: The policy: "base" or an adapter at a version.
            prompts: The prompts, each with possible replies.

        Raises:
            ServerError: The server refused, or the answer does not match this request, see
                `answers.checked_scores`.
        """
        # A prompt with many replies is sent several times, with some of them each.
        parts = []
        owners = []
        for number, prompt in enumerate(prompts):
            for start in range(0, len(prompt.replies), MAX_REPLIES):
                replies = prompt.replies[start : start + MAX_REPLIES]
                parts.append(msgspec.structs.replace(prompt, replies=replies))
                owners.append(number)
        answers: list[tuple[float, ...]] = []
        for batch in _score_batches(parts):
            answers += self._score(seat, batch)
        scores: list[tuple[float, ...]] = [()] * len(prompts)
        for owner, answer in zip(owners, answers, strict=True):
            scores[owner] += answer
        return tuple(scores)

    def _score(self, seat: str, prompts: Sequence[ScoredPrompt]) -> tuple[tuple[float, ...], ...]:
        """Return the log-probabilities of a request within the server's limits."""
        request = ScoreRequest(seat=seat, prompts=tuple(prompts))
        answer = self._call(
            ScoreAnswer, f"scores of {seat}", "POST", "/score/", **self._long(request)
        )
        try:
            return checked_scores(answer, request)
        except ServerError as error:
            raise ServerError(f"{self.url}: {error} {WHO}") from error

    def probe(
        self,
        adapter: str,
        weights: bytes,
        config: Mapping[str, Any],
        sequences: Sequence[Sequence[int]],
    ) -> ProbeAnswer:
        """Return what an adapter changes, on each copy of its base model; it is not kept.

        Args:
            adapter: Name of the session's adapter that it stands in for.
            weights: safetensors bytes.
            config: PEFT configuration.
            sequences: Token ids; each sequence is scored from its second token on.

        Raises:
            ServerError: The server refused it, or the answer does not match this request.
        """
        what = f"a probe of {adapter}"
        body = self._upload(
            what,
            f"/probes/{adapter}",
            0,
            weights,
            config,
            sha256=weights_digest(weights),
            headers={"x-token-ids": json.dumps([list(ids) for ids in sequences])},
        )
        try:
            return checked_probe(read_struct(ProbeAnswer, body), sequences)
        except (ValueError, ServerError) as error:
            raise ServerError(f"{self.url}: {what}: {error} {WHO}") from error

    def play(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        num_games: int,
        max_tokens: int,
        temperature: float,
        token_filter: TokenFilter = ALL_TOKENS,
        sampling_seed: int | None = None,
        seats: Sequence[str] | None = None,
        teachers: Sequence[SeatTeacher | None] | None = None,
        in_one_request: bool = False,
    ) -> RolloutResult:
        """Play each task `num_games` times, see `RolloutRequest`.

        A task that is listed twice gets two groups of different games, numbered consecutively. A
        large number of games is split into several requests, see `fleet.cut_request`; either all of
        them succeed, or none is returned.

        Args:
            tasks: Each a `TaskRequest` as a mapping; other keys belong to the caller and are not
                sent.
            num_games: Games per task.
            max_tokens: Maximum length of a reply in tokens.
            temperature: Sampling temperature; 0 is greedy.
            token_filter: Which tokens models may sample; those behind URLs have their own.
            sampling_seed: Decides every sampled reply, see `seeds.request_seed`; None: different
                replies each time.
            seats: Policy of each seat in tasks that do not name any.
            teachers: The teacher of each seat, which labels its turns; None for a seat without one.
                None: no seat has a teacher.
            in_one_request: Never split the games. A server keeps a version for requests that it
                has, but not for later ones, so this is needed if another version may be pushed in
                the meantime.

        Returns:
            The games, validated by `answers.checked_games`.

        Raises:
            SettingsError: A task cannot be played.
            ServerError: The server refused, all games failed, or the answers are not the requested
                games.
        """
        rows = []
        for task in tasks:
            fields = TaskRequest.__struct_fields__
            rows.append({name: task[name] for name in fields if name in task})
        given = {
            "num_games": num_games,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": token_filter.top_p,
            "top_k": token_filter.top_k,
            "sampling_seed": sampling_seed,
            "seats": seats,
            "teachers": msgspec.to_builtins(teachers),
        }
        if in_one_request:
            return self._play({"tasks": rows, **given})
        parts = cut_request(rows, num_games)
        if len(parts) == 1:
            return self._play({"tasks": rows, **given})
        return self._play_parts(rows, parts, given)

    def _play_parts(
        self,
        rows: Sequence[Mapping[str, Any]],
        parts: Sequence[Sequence[int]],
        given: Mapping[str, Any],
    ) -> RolloutResult:
        """Play tasks in several requests, in order and with a few in flight.

        Args:
            rows: The tasks as on the wire.
            parts: The positions of each request's tasks.
            given: The other fields of every request.

        Raises:
            ServerError: A request failed; the others in flight have ended, and no further one was
                made.
        """
        results: dict[int, RolloutResult] = {}
        waiting = deque(range(len(parts)))

        def play_some() -> None:
            while True:
                try:
                    number = waiting.popleft()
                except IndexError:
                    return
                tasks = [rows[position] for position in parts[number]]
                try:
                    results[number] = self._play({"tasks": tasks, **given})
                except BaseException:
                    waiting.clear()
                    raise

        workers = {f"{self.url}, request {n + 1}": play_some for n in range(REQUESTS_AT_ONCE)}
        side_by_side(workers)
        return merge_results(parts, [results[number] for number in range(len(parts))])

    def _play(self, fields: Mapping[str, Any]) -> RolloutResult:
        """Make one request for games, see `play`."""
        what = "playing games"
        try:
            request = read_struct(RolloutRequest, fields)
        except ValueError as error:
            raise SettingsError(f"{what}: {error}.") from error
        requested = read_tasks(request)
        num_seats = sum(len(task.refs) for task in requested)
        max_bytes = MAX_ANSWER + request.num_games * num_seats * _PLAYER_BYTES
        answer = self._call(
            RolloutAnswer, what, "POST", "/rollout/", tries=1, **self._long(request, max_bytes)
        )
        try:
            return checked_games(answer, requested)
        except ServerError as error:
            raise ServerError(f"{self.url}: {what}: {error} {WHO}") from error

    def ask_page(
        self, what: str, path: str, body: Struct, *, may_repeat: bool = False
    ) -> dict[str, Any]:
        """Make a request of the page where people play, see `rollout.person_messages`.

        Args:
            what: Description of the request, for messages.
            path: The request's name, e.g. "state".
            body: The message.
            may_repeat: Whether it is read-only, so that it is retried after a lost connection.

        Raises:
            ServerError: The server refused, or there is no such game.
        """
        tries = _TRIES if may_repeat else 1
        return self._call(dict, what, "POST", f"/play/{path}", tries=tries, **self._long(body))

    def _call(
        self,
        kind: type[_Answer],
        what: str,
        method: str,
        path: str,
        *,
        tries: int = _TRIES,
        patience: float | None = None,
        **request: Any,
    ) -> _Answer:
        """Make one call, see `calls.call`.

        Args:
            kind: Type of the answer.
            what: Description of the call, for messages.
            method: HTTP method.
            path: Route.
            tries: Number of tries after lost connections.
            patience: Seconds for which a busy server is retried; None: the default.
            **request: Further arguments for httpx.
        """
        return call(
            self.url,
            kind,
            lambda: self._http.request(method, path, **request),
            what,
            tries=tries,
            patience=self._limits.busy if patience is None else patience,
        )

    def _call_briefly(self, what: str, method: str, path: str) -> dict[str, Any]:
        """Make a call that is neither retried nor waits for a busy server."""
        limits = self._limits
        timeout = httpx.Timeout(limits.health, connect=min(limits.connect, limits.health))
        return self._call(dict, what, method, path, tries=1, patience=0.0, timeout=timeout)

    def _timeout(self, seconds: float) -> httpx.Timeout:
        return httpx.Timeout(seconds, connect=self._limits.connect)

    def _long(self, body: Struct, max_bytes: int = MAX_ANSWER) -> dict[str, Any]:
        """Return httpx's arguments for a struct whose answer may take as long as games."""
        return {
            "content": msgspec.json.encode(body),
            "headers": {"content-type": "application/json"},
            "timeout": self._timeout(self._limits.rollout),
            "extensions": {"max_bytes": max_bytes},
        }

    def _upload(
        self,
        what: str,
        path: str,
        version: int,
        weights: bytes,
        config: Mapping[str, Any],
        *,
        sha256: str,
        base: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Upload an adapter, with a time limit that grows with its size.

        Args:
            what: What is uploaded, for messages.
            path: Route.
            version: Policy version.
            weights: safetensors bytes.
            config: PEFT configuration.
            sha256: Digest of the weights, in hexadecimal digits.
            base: Fingerprint of the base model; None: it is not sent.
            headers: Further headers.
        """
        limit = self._limits.answer
        timeout = httpx.Timeout(
            limit,
            connect=self._limits.connect,
            read=limit + len(weights) / _BYTES_PER_SECOND,
        )
        sent_headers = {
            "x-sha256": sha256,
            "x-peft-config": json.dumps(config),
            "content-type": "application/octet-stream",
            **(headers or {}),
        }
        if base is not None:
            sent_headers["x-model-fingerprint"] = base
        return self._call(
            dict,
            what,
            "PUT",
            path,
            params={"version": version},
            content=weights,
            headers=sent_headers,
            timeout=timeout,
        )


def _score_batches(prompts: Sequence[ScoredPrompt]) -> Iterator[list[ScoredPrompt]]:
    """Yield prompts in batches that the server's limits on one request allow."""
    batch: list[ScoredPrompt] = []
    num_replies = 0
    for prompt in prompts:
        is_full = len(batch) == MAX_SCORED or num_replies + len(prompt.replies) > MAX_SCORES
        if batch and is_full:
            yield batch
            batch = []
            num_replies = 0
        batch.append(prompt)
        num_replies += len(prompt.replies)
    if batch:
        yield batch
