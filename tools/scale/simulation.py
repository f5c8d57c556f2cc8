"""One step of training with many servers, simulated event by event in simulated time.

Time is spent on what the real parts do: a server's event loop works on one game at a time, its GPUs
sample (`replica`), an answer is sent when the last game of its request has ended, answers share the
network link of the trainer's process 0, and that process reads one answer at a time, because the
interpreter's lock lets only one thread decode.

Not simulated: learning, failures, games that differ in speed for reasons other than their length,
and the network's latency, which is negligible compared with a step.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hanabi_grpo.client.fleet import REQUESTS_AT_ONCE, cut_request
from scale.replica import EngineSpeed, Replica

Game = tuple[int, ...]
"""One game: the number of tokens of each of its replies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Processor time of the parts other than the engine, in seconds, as measured by `measured`."""

    turn: float
    """Server: one turn of a game, from the prompt's text to the reply's move."""
    encode: float
    """Server: one episode as JSON."""
    prepare: float
    """Trainer: one task, assigned to a server and put into a request."""
    receive: float
    """Trainer: one byte of an answer."""
    decode: float
    """Trainer: one episode decoded from JSON, with its numbers checked."""
    accept: float
    """Trainer: one episode compared with the request."""
    push: float
    """Trainer: one byte of an adapter, sent to one server."""
    digest: float
    """Trainer: one byte of an adapter, for its sha256, independent of the number of servers."""
    store: float
    """Server: one byte of an adapter, received, checked and written."""
    episode_bytes: float
    """Size of one episode on the wire."""
    episode_memory: float
    """Bytes of the trainer's memory that one decoded episode takes."""

    def slowed(self, foreign: float) -> "Costs":
        """Return the costs when other programs take a share of the processor.

        Other programs may use idle time without slowing anything: next to one busy program, a
        program that is not always busy still gets half of the time when it needs it.
        """
        factor = 1.0 / max(1.0 - foreign, _FAIR_SHARE)
        seconds = {}
        for name in _SECONDS:
            seconds[name] = getattr(self, name) * factor
        return replace(self, **seconds)


_SECONDS = ("turn", "encode", "prepare", "receive", "decode", "accept", "push", "digest", "store")
"""Fields of `Costs` that are processor time."""
_FAIR_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines of a run."""

    num_servers: int
    gpus_per_server: int
    speed: EngineSpeed
    """Speed of each GPU."""
    bytes_per_second: float
    """Speed of the network link of the trainer's process 0, each way."""
    one_core: bool = False
    """Whether all processes share one core, as in the comparison with real servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one step."""

    num_episodes: int
    group_size: int
    """NUM_GENERATIONS; a group stays on one server."""
    games: Sequence[Game]
    """Games to draw from."""
    adapter_bytes: int
    """Size of all adapters of a team."""
    sync_seconds: float = 0.0
    """Time of a weight sync with one server beyond sending and storing bytes: export, loading."""
    seed: int = 0
    """Decides which games are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The time and traffic of a step."""

    sync_seconds: float
    """The weight sync, before any game begins."""
    games_seconds: float
    """From the first request until the last game has ended."""
    after_seconds: float
    """From the last game's end until the trainer has all episodes."""
    idle: float
    """Share of the GPUs' time from the first request to the last episode without any reply in
    flight."""
    speed: float
    """Tokens per second and GPU in the same time, relative to a GPU with a full batch."""
    loop: float
    """Share of the games' time in which a server's event loop was busy; mean over servers."""
    bytes_in: float
    """Bytes received by process 0."""
    bytes_out: float
    """Bytes pushed by process 0."""
    reading_seconds: float
    """Time that process 0 spends on answers: receiving, decoding, checking."""
    link_seconds: float
    """Time that the answers take on the network link alone."""
    num_tokens: int

    @property
    def seconds(self) -> float:
        """The whole step without learning."""
        return self.sync_seconds + self.games_seconds + self.after_seconds

    @property
    def limit(self) -> str:
        """What limits the step: its largest part."""
        parts = {
            "weight sync": self.sync_seconds,
            "games": self.games_seconds,
            "process 0": self.after_seconds,
        }
        largest = max(parts, key=lambda name: parts[name])
        if largest != "games":
            return largest
        if self.loop > _SATURATED:
            return "event loops"
        return "GPUs" if self.speed > _WELL_USED else "few games per GPU"


_SATURATED = 0.8
"""Above this share of its time, games wait for an event loop more than for the GPUs."""
_WELL_USED = 0.5
"""Above this share of its highest rate, a GPU counts as well used."""


class _Worker:
    """Something that does one job at a time, in order of arrival."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self.worked = 0.0

    def work(self, now: float, seconds: float) -> float:
        """Return when a job that arrives now is done."""
        self._free_at = max(self._free_at, now) + seconds
        self.worked += seconds
        return self._free_at


@dataclass(slots=True)
class _Request:
    """Games that are answered together."""

    server: "_Server"
    games: list[Game]
    left: int
    """Games that have not ended."""


@dataclass(slots=True)
class _Playing:
    game: Game
    request: _Request
    replica: int
    turn: int = 0


class _Server:
    def __init__(self, cluster: Cluster, loop: _Worker) -> None:
        self.loop = loop
        self.replicas: list[Replica[_Playing]] = []
        for _ in range(cluster.gpus_per_server):
            self.replicas.append(Replica(cluster.speed))
        self.places = cluster.speed.max_sequences * cluster.gpus_per_server
        self.queues: deque[deque[_Playing]] = deque()
        """Games that wait for a place, by request; requests take turns."""
        self.unasked: deque[_Request] = deque()
        self.timers = [0] * cluster.gpus_per_server
        """Number of the newest timer of each replica; older ones do nothing."""


class _Simulation:
    """The events of one step."""

    def __init__(self, cluster: Cluster, work: Work, costs: Costs) -> None:
        self._costs = costs
        self._work = work
        self._cluster = cluster
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._core = _Worker()
        self.process_0 = self._core if cluster.one_core else _Worker()
        self.link = _Worker()
        self.servers: list[_Server] = []
        for _ in range(cluster.num_servers):
            loop = self._core if cluster.one_core else _Worker()
            self.servers.append(_Server(cluster, loop))
        self.last_game = 0.0
        self.last_episode = 0.0
        self.reading_seconds = 0.0
        self.num_tokens = 0

    def run(self) -> None:
        """Play the step to its end."""
        rng = random.Random(self._work.seed)
        num_groups = self._work.num_episodes // self._work.group_size
        prepared = self.process_0.work(0.0, num_groups * self._costs.prepare)
        for number, server in enumerate(self.servers):
            share = num_groups // len(self.servers)
            share += number < num_groups % len(self.servers)
            if not share:
                continue
            for num_games in request_sizes(share, self._work.group_size):
                games = rng.choices(self._work.games, k=num_games)
                server.unasked.append(_Request(server, games, num_games))
            for _ in range(min(REQUESTS_AT_ONCE, len(server.unasked))):
                self._at(prepared, partial(self._ask, server=server))
        while self._events:
            now, _, action = heapq.heappop(self._events)
            action(now)

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _ask(self, now: float, server: _Server) -> None:
        if not server.unasked:
            return
        request = server.unasked.popleft()
        queue: deque[_Playing] = deque()
        for number, game in enumerate(request.games):
            queue.append(_Playing(game, request, number % len(server.replicas)))
        server.queues.append(queue)
        self._fill(now, server)

    def _fill(self, now: float, server: _Server) -> None:
        while server.places and server.queues:
            queue = server.queues.popleft()
            playing = queue.popleft()
            if queue:
                server.queues.append(queue)
            server.places -= 1
            self._reply_after(server.loop.work(now, self._costs.turn / 2), server, playing)

    def _reply_after(self, time: float, server: _Server, playing: _Playing) -> None:
        def ask(now: float) -> None:
            num_tokens = playing.game[playing.turn]
            self.num_tokens += num_tokens
            server.replicas[playing.replica].ask(now, num_tokens, playing)
            self._set_timer(server, playing.replica)

        self._at(time, ask)

    def _set_timer(self, server: _Server, number: int) -> None:
        end = server.replicas[number].next_end()
        if end is None:
            return
        server.timers[number] += 1
        timer = server.timers[number]

        def fire(now: float) -> None:
            if server.timers[number] == timer:
                for playing in server.replicas[number].ended(now):
                    self._on_reply(now, server, playing)
                self._set_timer(server, number)

        self._at(end, fire)

    def _on_reply(self, now: float, server: _Server, playing: _Playing) -> None:
        playing.turn += 1
        if playing.turn < len(playing.game):
            self._reply_after(server.loop.work(now, self._costs.turn), server, playing)
            return
        end = server.loop.work(now, self._costs.turn / 2)
        self._at(end, lambda now: self._on_game(now, server, playing.request))

    def _on_game(self, now: float, server: _Server, request: _Request) -> None:
        self.last_game = max(self.last_game, now)
        server.places += 1
        request.left -= 1
        self._fill(now, server)
        if not request.left:
            self._encode(now, request, len(request.games))

    def _encode(self, now: float, request: _Request, num_left: int) -> None:
        """Encode one episode at a time; games that are ready may run in between."""
        if num_left:
            end = request.server.loop.work(now, self._costs.encode)
            self._at(end, lambda now: self._encode(now, request, num_left - 1))
            return
        num_bytes = len(request.games) * self._costs.episode_bytes
        end = self.link.work(now, num_bytes / self._cluster.bytes_per_second)
        self._at(end, lambda now: self._read(now, request))

    def _read(self, now: float, request: _Request) -> None:
        costs = self._costs
        each = costs.episode_bytes * costs.receive + costs.decode
        seconds = len(request.games) * each
        self.reading_seconds += seconds
        end = self.process_0.work(now, seconds)

        def done(now: float) -> None:
            self.last_episode = max(self.last_episode, now)
            self._ask(now, request.server)

        self._at(end, done)


def request_sizes(num_groups: int, group_size: int) -> list[int]:
    """Return the number of games in each of the client's requests to one server."""
    tasks = []
    for seed in range(num_groups):
        tasks.append({"env_config": {}, "suite": "train", "seed": seed})
    return [len(part) * group_size for part in cut_request(tasks, group_size)]


def sync_seconds(cluster: Cluster, work: Work, costs: Costs) -> float:
    """Return how long the weight sync takes.

    Process 0 sends every adapter to every server, so all servers share its processor and its link.
    Each server stores its own copy at the same time.
    """
    sent = cluster.num_servers * work.adapter_bytes
    digesting = work.adapter_bytes * costs.digest
    stored = work.adapter_bytes * costs.store
    if cluster.one_core:
        stored *= cluster.num_servers
        return work.sync_seconds + digesting + sent * costs.push + stored
    sending = max(sent * costs.push, sent / cluster.bytes_per_second)
    return work.sync_seconds + digesting + sending + stored


def simulate(cluster: Cluster, work: Work, costs: Costs) -> Step:
    """Simulate a step.

    Args:
        cluster: The machines.
        work: The work of the step, which has at least one group.
        costs: Costs of the parts.
    """
    simulation = _Simulation(cluster, work, costs)
    simulation.run()
    accepting = work.num_episodes * costs.accept
    end = simulation.last_episode + accepting
    replicas = [replica for server in simulation.servers for replica in server.replicas]
    busy = sum(replica.busy_seconds for replica in replicas)
    rate = simulation.num_tokens / end / len(replicas)
    if cluster.one_core:
        loop = 1.0
    else:
        worked = sum(server.loop.worked for server in simulation.servers)
        loop = worked / len(simulation.servers) / simulation.last_game
    return Step(
        sync_seconds=sync_seconds(cluster, work, costs),
        games_seconds=simulation.last_game,
        after_seconds=end - simulation.last_game,
        idle=1.0 - busy / (end * len(replicas)),
        speed=rate / cluster.speed.highest_rate,
        loop=loop,
        bytes_in=work.num_episodes * costs.episode_bytes,
        bytes_out=float(cluster.num_servers * work.adapter_bytes),
        reading_seconds=simulation.reading_seconds + accepting,
        link_seconds=work.num_episodes * costs.episode_bytes / cluster.bytes_per_second,
        num_tokens=simulation.num_tokens,
    )
