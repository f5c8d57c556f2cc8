"""The trainer's and the evaluator's side of the rollout server's HTTP routes.

Every call has a time limit, names the server in its errors, and is retried only where a repeat is harmless.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx

from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import Episode
from hanabi_grpo.wire import PROTOCOL, outputs_to_episode

_TRIES = 3


def server_url(settings: Settings) -> str:
    """Return the server's address, e.g. "http://127.0.0.1:8000"."""
    host = f"[{settings.vllm_server_host}]" if ":" in settings.vllm_server_host else settings.vllm_server_host
    return f"http://{host}:{settings.vllm_server_port}"


class RolloutClient:
    """One connection to one rollout server."""

    def __init__(self, url: str, *, api_key: str | None = None, rollout_timeout: float = 1800.0) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            url: e.g. "http://127.0.0.1:8000".
            api_key: HANABI_API_KEY of the server.
            rollout_timeout: Longest wait for the games of one request, in seconds.
        """
        self.url = url
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env=False: a proxy variable must not catch traffic to a server of ours.
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=httpx.Timeout(60.0, connect=5.0), trust_env=False
        )
        self._rollout_timeout = httpx.Timeout(rollout_timeout, connect=5.0)

    @classmethod
    def from_settings(cls, settings: Settings) -> "RolloutClient":
        """Prepare a client for the server that the settings name."""
        key = settings.api_key.get_secret_value() if settings.api_key else None
        return cls(server_url(settings), api_key=key, rollout_timeout=settings.rollout_timeout)

    def health(self) -> dict[str, Any]:
        """Return the server's state; ServerError when it is unreachable or its engine is dead."""
        return self._json(lambda: self._http.get("/health/", timeout=5.0), "health check", tries=1)

    def identity(self) -> dict[str, Any]:
        """Return what the server is: instance, base model, dtype, largest rank, versions held."""
        return self._json(lambda: self._http.get("/identity/"), "identity")

    def log(self, after: int) -> tuple[int, list[str]]:
        """Return (the number to ask for next time, the server's log lines from number `after` on)."""
        answer = self._json(lambda: self._http.get("/log/", params={"after": after}), "log")
        return int(answer["next"]), [str(line) for line in answer["lines"]]

    def introduce(self, settings: Settings, *, run_id: str, adapters: Sequence[str], lora_rank: int) -> dict[str, Any]:
        """Open a session with what these settings say of base model, chat format and number format."""
        # Imported here: it takes seconds, which a health check need not wait for.
        from transformers import AutoTokenizer

        from hanabi_grpo.chat import ChatFormat
        from hanabi_grpo.fingerprint import model_fingerprint, resolve_model

        folder = resolve_model(settings.model)
        chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder), thinking=settings.thinking)
        return self.open_session(
            run_id=run_id,
            adapters=adapters,
            lora_rank=lora_rank,
            model_fingerprint=model_fingerprint(folder),
            chat_hash=chat.hash,
            dtype=settings.dtype,
        )

    def open_session(
        self,
        *,
        run_id: str,
        adapters: Sequence[str],
        lora_rank: int,
        model_fingerprint: str,
        chat_hash: str,
        dtype: str,
    ) -> dict[str, Any]:
        """Introduce a run; the server compares both sides and refuses what differs."""
        body = {
            "protocol": PROTOCOL,
            "run_id": run_id,
            "adapters": list(adapters),
            "lora_rank": lora_rank,
            "model_fingerprint": model_fingerprint,
            "chat_hash": chat_hash,
            "dtype": dtype,
        }
        answer = self._json(lambda: self._http.post("/session/", json=body), "opening a session")
        # From here on the server refuses this client's weights once another run has taken over.
        self._http.headers["x-run-id"] = run_id
        return answer

    def push(self, version: int, adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]) -> dict[str, Any]:
        """Upload every adapter, commit them together and check the receipts.

        Args:
            version: Optimizer steps behind these weights.
            adapters: Per adapter its safetensors bytes and PEFT configuration.

        Returns:
            {"instance_id": …, "receipts": {adapter: {"version", "sha256", "lora_name"}}}

        Raises:
            ServerError: The server refused, or its receipt is not for what was sent.
        """
        digests = {}
        for name, (body, config) in adapters.items():
            digests[name] = hashlib.sha256(body).hexdigest()
            headers = {
                "x-sha256": digests[name],
                "x-peft-config": json.dumps(config),
                "content-type": "application/octet-stream",
            }
            put = partial(
                self._http.put, f"/adapters/{name}", params={"version": version}, content=body, headers=headers
            )
            self._json(put, f"pushing {name}@{version}")
        answer = self._json(
            lambda: self._http.post("/adapters/commit", params={"version": version}), f"committing version {version}"
        )
        for name, digest in digests.items():
            receipt = answer["receipts"].get(name, {})
            if receipt.get("version") != version or receipt.get("sha256") != digest:
                raise ServerError(
                    f"{self.url}: receipt for {name} is {receipt}, pushed was version {version} with sha256 "
                    f"{digest[:16]}…; the server does not serve what was trained. Restart it."
                )
        return answer

    def play(
        self,
        deals: Sequence[Mapping[str, Any]],
        *,
        num_games: int,
        max_tokens: int,
        temperature: float,
        adapters: Mapping[str, str | None],
    ) -> list[list[Episode]]:
        """Play each deal `num_games` times.

        Args:
            deals: Each {"env_config": {...}, "suite": str, "seed": int}.
            num_games: Group size.
            max_tokens: Per reply.
            temperature: Of sampling.
            adapters: Per player "adapter@version" that must be served, or None for the base model.

        Returns:
            Per deal its games, in order.
        """
        rows, places = [], []
        for number, deal in enumerate(deals):
            players = EnvConfig.parse(deal["env_config"]).players
            for player in range(players):
                for game in range(num_games):
                    rows.append({"messages": [], "data_dict": {**deal, "player": player}})
                    places.append((number, game))
        body = {
            "infer_requests": rows,
            "request_config": {"max_tokens": max_tokens, "temperature": temperature},
            "adapters": dict(adapters),
        }
        outputs = self._json(
            lambda: self._http.post("/infer/", json=body, timeout=self._rollout_timeout), "playing games", tries=1
        )
        if len(outputs) != len(rows):
            raise ServerError(
                f"{self.url}: {len(outputs)} answers for {len(rows)} rows; the server and this client do not fit."
            )
        parts: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for place, output in zip(places, outputs, strict=True):
            parts.setdefault(place, []).append(output)
        return [[outputs_to_episode(parts[number, game]) for game in range(num_games)] for number in range(len(deals))]

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _json(self, call: Callable[[], httpx.Response], what: str, *, tries: int = _TRIES) -> Any:
        for attempt in range(1, tries + 1):
            try:
                response = call()
                break
            except httpx.TransportError as error:
                if attempt == tries:
                    raise ServerError(
                        f"{self.url}: {what} failed ({type(error).__name__}: {error}). "
                        "Is the rollout server running? Look at the other terminal."
                    ) from error
                time.sleep(0.5 * attempt)
        if response.status_code != 200:
            try:
                detail = response.json()["detail"]
            except (ValueError, KeyError, TypeError):
                detail = response.text[:500]
            if isinstance(detail, list | dict):
                detail = json.dumps(detail)[:500]
            raise ServerError(f"{self.url}: {what}: the server answered {response.status_code}: {detail}")
        return response.json()
