"""The rollout server without vLLM: real app, limits, store and scheduler on a real socket.

The engine samples nothing: its reply is a function of the adapter's bytes and the prompt, so a test
sees at once when another policy than the pushed one was served.
"""

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save

from fake_engine import BASE, CHAT, LAPTOP, MAX_MODEL_LEN, TOKENIZER, StubSampler, sample
from hanabi_grpo.agents.judge import Judge
from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.access import NOTHING_OUTSIDE, GameAccess
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.logs import LineRing
from hanabi_grpo.rollout.handshake import (
    PROTOCOL,
    SessionRequest,
    game_claims,
    session_headers,
    tokenizer_hash,
)
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, Sampler, SamplingConfig
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.app import create_app
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.main import listen
from hanabi_grpo.server.person_games import NOBODY_SET, PersonSettings
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.serving import run, serve_until_dead
from hanabi_grpo.server.sleep import SleepingSampler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.token_filter import TokenFilter
from hanabi_grpo.types import player_names

SHAPES = {
    f"model.layers.{layer}.self_attn.{name}": (8, 6)
    for layer in (0, 1)
    for name in ("q_proj", "v_proj")
}
RANK = 8
PLAYERS = player_names(2)
RUN_ID = "outputs/run"
TRAINER_ID = "0" * 32
SECRET = "5" * 64
"""Of the run folder."""
OWNER = session_headers(RUN_ID, TRAINER_ID)
PEFT_CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": RANK,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "lora_dropout": 0.0,
    "bias": "none",
    "use_rslora": False,
    "inference_mode": True,
}
JSON = {"content-type": "application/json"}
POST_ROLLOUT = b"POST /rollout/ HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
"""The beginning of a request that a test writes by hand."""
_REPLIES = ("Play 0", "Hint R", "Discard 1", "Hint Y", "Play 1")


def word_reply(adapter: AdapterHandle | None, prompt_ids: Sequence[int]) -> Sample:
    """What a `WordEngine` replies to these ids under this adapter.

    The handle is the hash of the adapter's files; None stands for the base model.
    """
    digest = hashlib.sha256(f"{adapter} {list(prompt_ids)}".encode()).digest()
    reply = sample(_REPLIES[digest[0] % len(_REPLIES)])
    return replace(reply, num_cached_tokens=len(prompt_ids) // 2)


def lora_of(body: bytes, config: Mapping[str, Any] | None = None) -> str:
    """The handle that a `WordEngine` gives an upload, see `word_reply`."""
    config_file = json.dumps(dict(config or PEFT_CONFIG)).encode()
    return hashlib.sha256(body + config_file).hexdigest()


class WordEngine(StubSampler):
    """Loads adapters by hashing their files; replies by hashing adapter and prompt."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long a reply takes."""
        self.loaded: dict[int, str] = {}
        """Number of each loaded adapter to its handle."""
        self.num_samples = 0
        self.seeds: list[int | None] = []
        """Of the replies so far."""
        self.filters: set[TokenFilter] = set()
        """Of the same."""

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        weights = (Path(path) / "adapter_model.safetensors").read_bytes()
        config = (Path(path) / "adapter_config.json").read_bytes()
        self.loaded[number] = hashlib.sha256(weights + config).hexdigest()
        return self.loaded[number]

    async def unload_adapter(self, number: int) -> None:
        del self.loaded[number]

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        await asyncio.sleep(self.seconds)
        if self.is_dead:
            raise RuntimeError("engine dead")
        self.num_samples += 1
        self.seeds.append(sampling.seed)
        self.filters.add(sampling.token_filter)
        return word_reply(adapter, prompt_ids)


class DozyEngine(WordEngine):
    """A `WordEngine` that can sleep, and whose every call in its sleep is a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asleep = False
        self.events: list[str] = []
        """What it did, in order."""
        self.faults: dict[str, Exception] = {}
        """By "sleep" or "wake" what goes wrong then."""
        self.seconds_to_sleep = 0.0

    async def sleep(self) -> None:
        self._check_awake("sleep")
        await asyncio.sleep(self.seconds_to_sleep)
        if "sleep" in self.faults:
            raise self.faults["sleep"]
        self.is_asleep = True
        self.events.append("sleep")

    async def wake(self) -> None:
        assert self.is_asleep
        if "wake" in self.faults:
            raise self.faults["wake"]
        self.is_asleep = False
        self.events.append("wake")

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        self._check_awake("generate")
        made = await super().generate(prompt_ids, sampling, adapter, game)
        self._check_awake("generate")
        return made

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        self._check_awake("score")
        return (-0.5,) * len(reply_ids)

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        self._check_awake("load")
        return await super().load_adapter(name, number, path)

    async def unload_adapter(self, number: int) -> None:
        self._check_awake("unload")
        await super().unload_adapter(number)

    def _check_awake(self, call: str) -> None:
        if self.is_asleep:
            self.events.append(f"{call} in its sleep")
            raise RuntimeError(f"{call} in its sleep")


def read_to_end(connection: socket.socket) -> bytes:
    """Everything that the server sends before it closes the connection."""
    connection.settimeout(8)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


@dataclass(slots=True, kw_only=True)
class RunningApp:
    """A server of this process, and what a test may look at from outside its thread."""

    port: int
    engine: WordEngine
    store: AdapterStore
    scheduler: Scheduler
    identity: ServerIdentity
    ring: LineRing

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout: float = 10.0) -> socket.socket:
        """A bare connection, for what no HTTP client would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)


def make_identity(**other: Any) -> ServerIdentity:
    """The identity of a server with the laptop board's tokenizer."""
    fields: dict[str, Any] = {
        "instance_id": "test-instance",
        "model": "test-model",
        "model_fingerprint": "f" * 16,
        "tokenizer_hash": tokenizer_hash(TOKENIZER),
        "chat_hash": CHAT.hash,
        "dtype": "float32",
        "max_lora_rank": RANK,
        "max_players": 2,
        "max_model_len": MAX_MODEL_LEN,
    }
    fields.update(other)
    return ServerIdentity(**fields)


@contextlib.contextmanager
def running_app(
    *,
    api_key: str | None = None,
    poll: float = 0.05,
    port: int = 0,
    engine: WordEngine | None = None,
    partners: UrlPartners | None = None,
    judge: Judge | None = None,
    access: GameAccess = NOTHING_OUTSIDE,
    people: PersonSettings = NOBODY_SET,
    sleeps: bool = False,
    **identity: Any,
) -> Iterator[RunningApp]:
    """Serve the real app around a `WordEngine` in a thread.

    Args:
        api_key: Key that requests must carry.
        poll: Seconds between two looks at whether the engine is dead.
        port: Where to listen; 0: a free port.
        engine: The engine; None: a new one.
        partners: Models behind URLs.
        judge: Scores the session's games.
        access: What requests may name beside games that only compute.
        people: What games of people take from the server's settings.
        sleeps: Whether the engine sleeps while the trainer learns.
        identity: Fields of the server's identity that differ from `make_identity`.
    """
    listener = listen("127.0.0.1", port)
    engine = engine or WordEngine()
    ring = LineRing()
    described = make_identity(
        **identity,
        partners=partners.described if partners else {},
        judge=judge.agreement if judge else "",
    )
    sampler: Sampler = engine
    if sleeps:
        assert isinstance(engine, DozyEngine)
        sampler = SleepingSampler(engine, lambda: store.ownership.is_alive)
    store = AdapterStore(
        sampler, max_rank=RANK, shapes=SHAPES, session_timeout=described.session_timeout
    )
    model = Model(
        sampler=sampler, chat=CHAT, max_model_len=described.max_model_len, vocab_size=len(TOKENIZER)
    )
    if partners:
        model = replace(model, partners=partners)
    scheduler = Scheduler(
        model,
        store,
        games_at_once=256,
        instance_id=described.instance_id,
        game_timeout=60.0,
        workers=WorkerPool(call_timeout=60.0, session_workers=1),
        judge=judge,
    )
    app = create_app(
        sampler, store, scheduler, described, ring, api_key=api_key, access=access, people=people
    )
    running = RunningApp(
        port=listener.getsockname()[1],
        engine=engine,
        store=store,
        scheduler=scheduler,
        identity=described,
        ring=ring,
    )
    stopping = threading.Event()

    def has_ended() -> bool:
        return sampler.is_dead or stopping.is_set()

    async def serve() -> None:
        try:
            await serve_until_dead(app, listener, has_ended, poll=poll, graceful_seconds=1)
        finally:
            scheduler.close()

    thread = threading.Thread(target=run, args=(serve(),), name="running-app")
    thread.start()
    try:
        yield running
    finally:
        stopping.set()
        thread.join(20)
        store.close()
        if thread.is_alive():
            raise RuntimeError("the app's thread did not end within 20 s")


def adapter_bytes(
    value: float = 0.5,
    up: float | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    rank: int = RANK,
) -> bytes:
    """A valid upload whose tensors all hold `value`, those of B `up` where it is given."""
    value_b = value if up is None else up
    tensors = {}
    for module, (num_out, num_in) in SHAPES.items():
        prefix = f"base_model.model.{module}"
        tensors[f"{prefix}.lora_A.weight"] = torch.full((rank, num_in), value, dtype=dtype)
        tensors[f"{prefix}.lora_B.weight"] = torch.full((num_out, rank), value_b, dtype=dtype)
    return save(tensors)


def upload_headers(body: bytes, config: Mapping[str, Any] = PEFT_CONFIG) -> dict[str, str]:
    """The headers of an upload, without those of its trainer."""
    return {
        "x-sha256": hashlib.sha256(body).hexdigest(),
        "x-peft-config": json.dumps(config),
        "content-type": "application/octet-stream",
    }


def session_body(identity: ServerIdentity, **other: Any) -> dict[str, Any]:
    """A session request that this server accepts."""
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "run_id": RUN_ID,
        "trainer_id": TRAINER_ID,
        "secret": SECRET,
        "adapters": list(PLAYERS),
        "lora_rank": RANK,
        "games": game_claims([Setup(HANABI, LAPTOP)]),
        "model_fingerprint": identity.model_fingerprint,
        "tokenizer_hash": identity.tokenizer_hash,
        "chat_hash": identity.chat_hash,
        "dtype": identity.dtype,
    }
    fields.update(other)
    request = msgspec.convert(fields, SessionRequest)
    body: dict[str, Any] = msgspec.to_builtins(request)
    return body


def open_session(client: RolloutClient, app: RunningApp, **other: Any) -> dict[str, Any]:
    """Open a session by claiming the app's own model instead of hashing a folder."""
    fields = session_body(app.identity, **other)
    del fields["protocol"]
    del fields["trainer_id"]
    return client.open_session(**fields)


def push_to(client: RolloutClient, app: RunningApp, version: int = 1) -> dict[str, bytes]:
    """Open a session of a new run and serve an adapter for each player; returns their bytes."""
    open_session(client, app, run_id=client.trainer_id)
    bodies = {}
    for number, name in enumerate(PLAYERS):
        bodies[name] = adapter_bytes(0.25 + number + version)
    client.push(version, {name: (body, PEFT_CONFIG) for name, body in bodies.items()})
    return bodies


def rollout_body(
    *, num_tasks: int = 1, num_games: int = 1, seats: Sequence[str] = BASE, **other: Any
) -> dict[str, Any]:
    """A rollout request that this server plays."""
    tasks = []
    for seed in range(num_tasks):
        config = LAPTOP.model_dump(mode="json")
        tasks.append({"env_config": config, "suite": "train", "seed": seed})
    fields = {
        "tasks": tasks,
        "num_games": num_games,
        "max_tokens": 4,
        "temperature": 1.0,
        "seats": list(seats),
    }
    fields.update(other)
    return fields
