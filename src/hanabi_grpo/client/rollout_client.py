"""The trainer's and the evaluator's side of the rollout server's HTTP routes: adapters, games and single replies.

How calls end, and when they are repeated, is said in `session_client`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from hanabi_grpo.client.answers import RolloutResult, checked_games
from hanabi_grpo.client.http_bounds import MAX_ANSWER
from hanabi_grpo.client.http_calls import WHO
from hanabi_grpo.client.session_client import (
    ClientTimeouts,
    Request,
    SessionClient,
    each_server,
    server_name,
    server_url,
)
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.messages import (
    EarlierTurn,
    ReplyAnswer,
    ReplyRequest,
    RolloutAnswer,
    RolloutRequest,
    TaskRequest,
)
from hanabi_grpo.rollout.tasks import read_tasks
from hanabi_grpo.runs.adapter_config import config_digest, frozen_name
from hanabi_grpo.runs.wire import read_struct
from hanabi_grpo.settings.refs import seat_adapter
from hanabi_grpo.types import Reply

__all__ = ["ClientTimeouts", "RolloutClient", "RolloutResult", "each_server", "server_name", "server_url"]


_PLAYER_BYTES = 4 << 20
"""Of one player's part of a game: 40,960 tokens at 30 bytes for id and logprob, and as much text again, fit twice."""
_UPLOAD_PACE = 1 << 20
"""Bytes a second of the slowest link that an adapter may be pushed over."""


class _Receipt(Struct):
    """What the server serves of one adapter: the digests are of the tensors as loaded and of `config_digest`."""

    version: int
    sha256: str
    config_sha256: str
    lora_name: str


class _Commit(Struct):
    instance_id: str
    receipts: dict[str, _Receipt]


class _Lent(Struct):
    """Receipt of a lent adapter; `seat` is its word, e.g. "frozen_0123456789abcdef@50"."""

    seat: str
    name: str
    version: int
    sha256: str
    config_sha256: str


class RolloutClient(SessionClient):
    """A connection that pushes and lends adapters, and asks for games and replies."""

    def push(self, version: int, adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]) -> dict[str, Any]:
        """Upload every adapter, commit them together and check the receipts.

        Args:
            version: Optimizer steps behind these weights.
            adapters: Per adapter its safetensors bytes and PEFT configuration.

        Returns:
            {"instance_id": …, "receipts": {adapter: {"version", "sha256", "config_sha256", "lora_name"}}}

        Raises:
            ServerError: The server refused, or its receipt is not for what was sent.
        """
        sent = {}
        for name, (body, config) in adapters.items():
            sent[name] = (version, hashlib.sha256(body).hexdigest(), config_digest(config))
            self._call(dict, self._upload(f"/adapters/{name}", version, body, config), f"pushing {name}@{version}")
        commit = partial(self._http.post, "/adapters/commit", params={"version": version})
        answer = self._call(_Commit, commit, f"committing version {version}")
        for name, pushed in sent.items():
            receipt = answer.receipts.get(name)
            if receipt is None or (receipt.version, receipt.sha256, receipt.config_sha256) != pushed:
                raise ServerError(
                    f"{self.url}: receipt for {name} is {receipt}, pushed was version {version} with sha256 "
                    f"{pushed[1][:16]}… and config {pushed[2][:16]}…; the server does not serve what was trained. "
                    "Restart it."
                )
        return dict(msgspec.to_builtins(answer))

    def lend(self, version: int, weights: bytes, config: Mapping[str, Any]) -> str:
        """Give the server an adapter that it keeps beside those of its session, and check the receipt.

        The server holds a few; the least recently used go first. Lending one that it holds costs only the upload.

        Returns:
            The word for its seats, e.g. "frozen_0123456789abcdef@50".

        Raises:
            ServerError: The server refused, or its receipt is not for what was sent.
        """
        sha256, digest = hashlib.sha256(weights).hexdigest(), config_digest(config)
        name = frozen_name(sha256, config)
        answer = self._call(_Lent, self._upload("/frozen/", version, weights, config), f"lending {name}@{version}")
        got = (answer.seat, answer.name, answer.version, answer.sha256, answer.config_sha256)
        if got != (f"{name}@{version}", name, version, sha256, digest):
            raise ServerError(
                f"{self.url}: receipt for {name}@{version} is {answer}; the server does not hold what was lent. "
                "Restart it."
            )
        return answer.seat

    def reply(
        self,
        *,
        seat: str,
        system: str,
        turns: Sequence[tuple[str, Sequence[int]]],
        prompt: str,
        max_tokens: int,
        temperature: float,
    ) -> Reply:
        """Sample one reply in a conversation, see `ReplyRequest`; the server remembers nothing of it afterwards.

        Raises:
            ServerError: The server refused, or its answer is not a reply of that seat.
        """
        body = ReplyRequest(
            seat=seat,
            system=system,
            turns=tuple(EarlierTurn(prompt=text, reply_ids=tuple(ids)) for text, ids in turns),
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        what = f"a reply of {seat}"
        answer = self._call(ReplyAnswer, self._games("/reply/", body), what)
        named = seat_adapter(seat)
        if not answer.out_of_tokens and answer.version != (named[1] if named else None):
            raise ServerError(f"{self.url}: {what}: it came from version {answer.version}. Restart the server.")
        return Reply(prompt=prompt, **msgspec.structs.asdict(answer))

    def play(
        self,
        deals: Sequence[Mapping[str, Any]],
        *,
        num_games: int,
        max_tokens: int,
        temperature: float,
        seats: Sequence[str] | None = None,
    ) -> RolloutResult:
        """Play each deal `num_games` times, see `RolloutRequest`.

        Args:
            deals: Each a `TaskRequest` as a mapping; other keys are the caller's own and are not sent. One that is
                named twice gets two groups of different games, numbered on.
            num_games: Group size.
            max_tokens: Per reply.
            temperature: Of sampling.
            seats: Of deals that name none, one word each; None: whoever is served now.

        Raises:
            SettingsError: A deal that cannot be played.
            ServerError: The server refused, no game of all could be played, or the answers are not the games that were
                asked for.
        """
        given = {
            "tasks": [{name: deal[name] for name in TaskRequest.__struct_fields__ if name in deal} for deal in deals],
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
        tasks = read_tasks(request)
        max_bytes = MAX_ANSWER + num_games * sum(task.task.setup.spec.num_players for task in tasks) * _PLAYER_BYTES
        answer = self._call(RolloutAnswer, self._games("/rollout/", request, max_bytes=max_bytes), what, tries=1)
        try:
            return checked_games(answer, tasks)
        except ServerError as error:
            raise ServerError(f"{self.url}: {what}: {error} {WHO}") from error

    def _upload(self, path: str, version: int, body: bytes, config: Mapping[str, Any]) -> Request:
        """Return the request that uploads an adapter; the larger it is the more time it has."""
        headers = {
            "x-sha256": hashlib.sha256(body).hexdigest(),
            "x-peft-config": json.dumps(config),
            "content-type": "application/octet-stream",
        }
        seconds = self._answer_timeout.as_dict()
        timeout = httpx.Timeout(**{**seconds, "read": (seconds["read"] or 0.0) + len(body) / _UPLOAD_PACE})
        params = {"version": version}
        return partial(self._http.put, path, params=params, content=body, headers=headers, timeout=timeout)
