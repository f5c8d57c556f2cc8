"""The table of `docs/scale.md`: steps on 1 to 64 servers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from scale.measured import GROUP, Measured
from scale.replica import EngineSpeed
from scale.simulation import Cluster, Costs, Game, Step, Work, simulate

SERVERS = (1, 2, 4, 8, 16, 32, 64)
EPISODES = (2048, 16384, 100_000)
GAMES_ON_ONE_GPU = {64: 5310.0, 256: 11100.0}
"""Tokens per second by games of a step: Qwen3-4B on one H200, docs/benchmarks.md, middle values."""
SYNC_SECONDS = 2.5
"""Time of a weight sync of two adapters of Qwen3-4B with one server, from the same page."""
_PERCENT = 100
_MEGA = 1e6
_ITERATIONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    gpus_per_server: int
    num_servers: int
    num_episodes: int
    step: Step


def calibrated(games: Sequence[Game], costs: Costs) -> EngineSpeed:
    """Return the speed with which the simulation reproduces the rates measured on one GPU.

    Two rates determine the two numbers of a speed. Both times are sums of these numbers, weighted
    by the passes made, which change little with the speed, so Newton's method converges quickly.

    Args:
        games: The games that are played.
        costs: Costs of everything else.
    """
    few, many = GAMES_ON_ONE_GPU
    speed = EngineSpeed(pass_seconds=8e-3, sequence_seconds=6e-5)
    for _ in range(_ITERATIONS):
        at = _times(speed, games, costs)
        wanted = {number: at[number][1] / rate for number, rate in GAMES_ON_ONE_GPU.items()}
        small = 1e-3
        slower_pass = replace(speed, pass_seconds=speed.pass_seconds * (1 + small))
        slower_sequence = replace(speed, sequence_seconds=speed.sequence_seconds * (1 + small))
        by_pass = _times(slower_pass, games, costs)
        by_sequence = _times(slower_sequence, games, costs)
        matrix = []
        for number in (few, many):
            of_pass = (by_pass[number][0] - at[number][0]) / (speed.pass_seconds * small)
            of_sequence = (by_sequence[number][0] - at[number][0]) / (
                speed.sequence_seconds * small
            )
            matrix.append((of_pass, of_sequence, wanted[number] - at[number][0]))
        (a, b, left), (c, d, right) = matrix
        determinant = a * d - b * c
        speed = EngineSpeed(
            pass_seconds=speed.pass_seconds + (left * d - b * right) / determinant,
            sequence_seconds=speed.sequence_seconds + (a * right - left * c) / determinant,
        )
    return speed


def _times(speed: EngineSpeed, games: Sequence[Game], costs: Costs) -> dict[int, tuple[float, int]]:
    """Return seconds and tokens by the number of games that one GPU plays."""
    times = {}
    for num_games in GAMES_ON_ONE_GPU:
        cluster = Cluster(num_servers=1, gpus_per_server=1, speed=speed, bytes_per_second=1e9)
        work = Work(num_episodes=num_games, group_size=GROUP, games=games, adapter_bytes=0)
        step = simulate(cluster, work, costs)
        times[num_games] = (step.games_seconds + step.after_seconds, step.num_tokens)
    return times


def lines(
    measured: Measured,
    speed: EngineSpeed,
    *,
    gpus_per_server: int,
    bytes_per_second: float,
    servers: Iterable[int] = SERVERS,
    episodes: Iterable[int] = EPISODES,
) -> Iterator[Line]:
    """Simulate every step of the table.

    Args:
        measured: The costs of the parts.
        speed: Speed of each GPU.
        gpus_per_server: Copies of the model behind one server.
        bytes_per_second: Speed of process 0's link.
        servers: Numbers of servers.
        episodes: Numbers of episodes per step.
    """
    costs = measured.costs
    each = max(costs.push, 1 / bytes_per_second) + costs.digest + costs.store
    one = measured.adapter_bytes * each
    for num_episodes in episodes:
        work = Work(
            num_episodes=num_episodes,
            group_size=GROUP,
            games=measured.games,
            adapter_bytes=measured.adapter_bytes,
            sync_seconds=max(0.0, SYNC_SECONDS - one),
        )
        for num_servers in servers:
            cluster = Cluster(
                num_servers=num_servers,
                gpus_per_server=gpus_per_server,
                speed=speed,
                bytes_per_second=bytes_per_second,
            )
            yield Line(
                gpus_per_server=gpus_per_server,
                num_servers=num_servers,
                num_episodes=num_episodes,
                step=simulate(cluster, work, costs),
            )


_HEAD = """\
| episodes | servers | step, s | sync, s | games, s | after, s | idle | full batch | loop | \
in, MB | out, MB | process 0, s | limit |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|
"""


def markdown(lines: Iterable[Line]) -> str:
    """Return lines as a table."""
    rows = []
    for line in lines:
        step = line.step
        cells = (
            f"{line.num_episodes:,}",
            str(line.num_servers),
            f"{step.seconds:.1f}",
            f"{step.sync_seconds:.1f}",
            f"{step.games_seconds:.1f}",
            f"{step.after_seconds:.1f}",
            f"{step.idle * _PERCENT:.0f} %",
            f"{step.speed * _PERCENT:.0f} %",
            f"{step.loop * _PERCENT:.0f} %",
            f"{step.bytes_in / _MEGA:,.0f}",
            f"{step.bytes_out / _MEGA:,.0f}",
            f"{step.reading_seconds:.1f}",
            step.limit,
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    return _HEAD + "".join(rows)
