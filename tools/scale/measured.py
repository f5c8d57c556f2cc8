"""Real servers, the real trainer's connection to them, and the cost of each of their parts.

The servers are separate processes (`server`), reached through `training.fleet_link`.
"""

import contextlib
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import psutil
import torch
from safetensors.torch import save

from hanabi_grpo.client.answers import checked_games
from hanabi_grpo.client.calls import read_answer
from hanabi_grpo.client.fleet import share_tasks
from hanabi_grpo.client.rollout_client import weights_digest
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import training_rows
from hanabi_grpo.rollout.messages import RolloutAnswer, RolloutRequest, TaskRequest, read_tasks
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.server.adapter_files import Shapes
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.fleet_link import Link, make_link
from hanabi_grpo.training.link import Adapters, ServerLink
from hanabi_grpo.training.tasks import TaskDataset
from hanabi_grpo.types import Episode, player_names
from scale.replica import EngineSpeed
from scale.server import LORA_RANK, ServerPlan, plan_to_text
from scale.simulation import Costs, Game

TINY_MODEL = Path(__file__).parents[2] / "data/tiny-model"
GROUP = 16
"""NUM_GENERATIONS."""
_NEARLY_AT_ONCE = EngineSpeed(pass_seconds=1e-5, sequence_seconds=0.0)
"""So fast that everything else dominates the time."""
_START_SECONDS = 120.0
_SETTLE_SECONDS = 0.3
"""Time after which a server has nothing left to do."""
_MANY_TASKS = 1 << 20
_MANY_SERVERS = 64


def qwen3_4b_shapes() -> Shapes:
    """Return the linear layers of Qwen3-4B by name, each (outputs, inputs)."""
    hidden, inner, queries, keys = 2560, 9728, 4096, 1024
    shapes = {}
    for layer in range(36):
        attention = f"model.layers.{layer}.self_attn"
        shapes[f"{attention}.q_proj"] = (queries, hidden)
        shapes[f"{attention}.k_proj"] = (keys, hidden)
        shapes[f"{attention}.v_proj"] = (keys, hidden)
        shapes[f"{attention}.o_proj"] = (hidden, queries)
        perceptron = f"model.layers.{layer}.mlp"
        shapes[f"{perceptron}.gate_proj"] = (inner, hidden)
        shapes[f"{perceptron}.up_proj"] = (inner, hidden)
        shapes[f"{perceptron}.down_proj"] = (hidden, inner)
    return shapes


SMALL_SHAPES: Shapes = {"model.layers.0.self_attn.q_proj": (64, 64)}


def made_adapters(shapes: Shapes, names: tuple[str, ...]) -> Adapters:
    """Return adapters of the server's rank in bfloat16, as a trainer exports them."""
    generator = torch.Generator().manual_seed(0)
    adapters = {}
    for name in names:
        tensors = {}
        for module, (num_out, num_in) in shapes.items():
            prefix = f"base_model.model.{module}"
            for part, shape in (("lora_A", (LORA_RANK, num_in)), ("lora_B", (num_out, LORA_RANK))):
                values = torch.randn(shape, generator=generator) / 100
                tensors[f"{prefix}.{part}.weight"] = values.to(torch.bfloat16)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": LORA_RANK,
            "lora_alpha": 2 * LORA_RANK,
            "target_modules": sorted({module.rpartition(".")[2] for module in shapes}),
            "lora_dropout": 0.0,
            "bias": "none",
            "use_rslora": False,
            "inference_mode": True,
        }
        adapters[name] = (save(tensors), config)
    return adapters


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Running servers, and the trainer's link to them with its session open."""

    link: Link
    settings: Settings
    processes: list[psutil.Process]
    names: tuple[str, ...]
    version: int = 0
    _step: int = field(default=0)

    @property
    def only_link(self) -> ServerLink:
        """The link of a fleet with one server."""
        assert isinstance(self.link, ServerLink), "several servers"
        return self.link

    def tasks(self, num_episodes: int) -> list[TaskRow]:
        """Return the tasks of the next step."""
        dataset = TaskDataset(training_rows(self.settings), _MANY_TASKS)
        first = self._step
        count = num_episodes // GROUP
        self._step += count
        return [dataset[number] for number in range(first, first + count)]

    def push(self, adapters: Adapters) -> None:
        """Push the next version to all servers."""
        self.version += 1
        self.link.push_exported(adapters, self.version)

    def server_seconds(self, settle: float = _SETTLE_SECONDS) -> float:
        """Return the processor time of all servers so far, once they have had time to finish."""
        time.sleep(settle)
        seconds = 0.0
        for process in self.processes:
            times = process.cpu_times()
            seconds += times.user + times.system
        return seconds


@contextlib.contextmanager
def running_fleet(
    folder: Path,
    num_servers: int,
    *,
    speed: EngineSpeed,
    num_replicas: int = 1,
    shapes: Shapes = SMALL_SHAPES,
    reply_tokens: int = 128,
    preset: str = "laptop",
) -> Iterator[Fleet]:
    """Start servers and introduce a run to all of them.

    Args:
        folder: The run's folder, empty.
        num_servers: Server processes.
        speed: Speed of each GPU.
        num_replicas: GPUs of each server.
        shapes: Shapes of the layers that adapters cover.
        reply_tokens: Length of each reply.
        preset: The board.

    Yields:
        The servers and the link.
    """
    started: list[subprocess.Popen[str]] = []
    ports = []
    # This package is not part of the installed one, so a child must search the same paths.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        for number in range(num_servers):
            plan = ServerPlan(
                name=f"server-{number}",
                model=str(TINY_MODEL),
                speed=speed,
                num_replicas=num_replicas,
                shapes=shapes,
            )
            command = [sys.executable, "-m", "scale.server", plan_to_text(plan)]
            started.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                )
            )
        for process in started:
            ports.append(_port_of(process))
        settings = Settings(
            model=str(TINY_MODEL),
            vllm_server_host=",".join(f"127.0.0.1:{port}" for port in ports),
            num_generations=GROUP,
            max_completion_length=reply_tokens,
            lora_rank=LORA_RANK,
            preset=preset,
            observation="compact",
            dtype="bfloat16",
            server_timeout=_START_SECONDS,
        )
        link = make_link(settings, folder)
        link.connect(0)
        processes = [psutil.Process(process.pid) for process in started]
        fleet = Fleet(
            link=link, settings=settings, processes=processes, names=player_names(settings.players)
        )
        try:
            yield fleet
        finally:
            link.disconnect()
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _port_of(process: "subprocess.Popen[str]") -> int:
    """Return the port that a server prints when it has started.

    Raises:
        ServerError: The server ended instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ServerError(
            f"a server of the measurement ended with {process.wait()} before it had started; see "
            "its output above."
        )
    return int(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealStep:
    """A step that was played."""

    seconds: float
    """From the request until the trainer has all episodes."""
    groups: list[list[Episode]]
    foreign: float
    """Share of the processor time that other programs took during the step."""


def real_step(fleet: Fleet, num_episodes: int) -> RealStep:
    """Play one step on all servers as a trainer does."""
    tasks = fleet.tasks(num_episodes)
    busy_before = _busy_seconds()
    own_before = fleet.server_seconds(settle=0.0) + time.process_time()
    start = time.perf_counter()
    result = fleet.link.play(tasks, fleet.names, fleet.version)
    seconds = time.perf_counter() - start
    own = fleet.server_seconds(settle=0.0) + time.process_time() - own_before
    foreign = (_busy_seconds() - busy_before - own) / seconds
    return RealStep(seconds=seconds, groups=result.groups, foreign=max(0.0, foreign))


def _busy_seconds() -> float:
    """Return how long the cores that this process may use have been busy since the boot."""
    times = psutil.cpu_times(percpu=True)
    seconds = 0.0
    for core in os.sched_getaffinity(0):
        seconds += sum(times[core]) - times[core].idle - times[core].iowait
    return seconds


def games_of(groups: list[list[Episode]]) -> list[Game]:
    """Return the shapes of played games, for the simulation to draw from."""
    games = []
    for group in groups:
        for episode in group:
            games.append(tuple(len(turn.reply_ids) for turn in episode.turns))
    return games


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The costs of the parts, and the games used to measure them."""

    costs: Costs
    games: list[Game]
    adapter_bytes: int
    """Size of a team's adapters for Qwen3-4B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCosts:
    """Processor time per byte of an adapter, see `Costs`."""

    push: float
    digest: float
    store: float


def measure(
    folder: Path, *, num_episodes: int = 512, reply_tokens: int = 128, preset: str = "laptop"
) -> Measured:
    """Measure every part on one real server whose engine takes almost no time.

    Args:
        folder: An empty folder.
        num_episodes: Games that are played.
        reply_tokens: Length of each reply.
        preset: The board.
    """
    shapes = qwen3_4b_shapes()
    with running_fleet(
        folder,
        1,
        speed=_NEARLY_AT_ONCE,
        shapes=shapes,
        reply_tokens=reply_tokens,
        preset=preset,
    ) as fleet:
        adapters = made_adapters(shapes, fleet.names)
        adapter_bytes = sum(len(body) for body, _ in adapters.values())
        fleet.push(adapters)
        servers_before = fleet.server_seconds()
        own_before = time.process_time()
        fleet.push(adapters)
        push = (time.process_time() - own_before) / adapter_bytes
        own_before = time.process_time()
        for body, _ in adapters.values():
            weights_digest(body)
        digest = (time.process_time() - own_before) / adapter_bytes
        store = (fleet.server_seconds() - servers_before) / adapter_bytes
        # The first games fill caches.
        real_step(fleet, GROUP)
        costs = AdapterCosts(push=push - digest, digest=digest, store=store)
        return _measure_games(fleet, num_episodes, adapter_bytes, costs)


def _measure_games(
    fleet: Fleet, num_episodes: int, adapter_bytes: int, adapters: AdapterCosts
) -> Measured:
    tasks = fleet.tasks(num_episodes)
    start = time.process_time()
    request = fleet.link.prepare(tasks, fleet.names, fleet.version)
    share_tasks(request.tasks, _MANY_SERVERS)
    rows = []
    for task in request.tasks:
        rows.append({name: task[name] for name in TaskRequest.__struct_fields__ if name in task})
    body = read_struct(
        RolloutRequest,
        {
            "tasks": rows,
            "num_games": GROUP,
            "max_tokens": fleet.settings.max_completion_length,
            "temperature": 1.0,
            "seats": request.own,
        },
    )
    requested = read_tasks(body)
    prepare = (time.process_time() - start) / len(tasks)
    servers_before = fleet.server_seconds()
    content = _answer(fleet, body)
    server = fleet.server_seconds() - servers_before
    # The games are played again, and only this process is measured.
    own_before = time.process_time()
    content = _answer(fleet, body)
    receive = (time.process_time() - own_before) / len(content)
    gc.collect()
    memory_before = psutil.Process().memory_info().rss
    own_before = time.process_time()
    answer = read_answer("", RolloutAnswer, content, "measuring")
    result = checked_games(answer, requested)
    decode = (time.process_time() - own_before) / num_episodes
    memory = psutil.Process().memory_info().rss - memory_before
    own_before = time.process_time()
    fleet.only_link.accept(request, result)
    accept = (time.process_time() - own_before) / num_episodes
    episodes = [episode for group in result.groups for episode in group]
    own_before = time.process_time()
    for episode in episodes:
        msgspec.json.encode(episode)
    encode = (time.process_time() - own_before) / num_episodes
    games = games_of(result.groups)
    num_turns = sum(map(len, games))
    costs = Costs(
        turn=(server - num_episodes * encode) / num_turns,
        encode=encode,
        prepare=prepare,
        receive=receive,
        decode=decode,
        accept=accept,
        push=adapters.push,
        digest=adapters.digest,
        store=adapters.store,
        episode_bytes=len(content) / num_episodes,
        episode_memory=memory / num_episodes,
    )
    return Measured(costs=costs, games=games, adapter_bytes=adapter_bytes)


def _answer(fleet: Fleet, body: RolloutRequest) -> bytes:
    """Return the bytes that a request is answered with."""
    client = fleet.only_link.client
    headers = {**client.headers, "content-type": "application/json"}
    response = httpx.post(
        f"{client.url}/rollout/",
        content=msgspec.json.encode(body),
        headers=headers,
        timeout=600.0,
        trust_env=False,
    )
    response.raise_for_status()
    return response.content
