"""Compare the simulation with real servers, on one core of this machine."""

import os
from dataclasses import dataclass
from pathlib import Path

from scale.measured import (
    GROUP,
    SMALL_SHAPES,
    games_of,
    made_adapters,
    real_step,
    running_fleet,
)
from scale.replica import EngineSpeed
from scale.simulation import Cluster, Costs, Work, simulate

SPEED = EngineSpeed(pass_seconds=7.5e-3, sequence_seconds=6e-5)
"""Slower than the speed of `table.calibrated`, which is 4.8 and 0.053 ms in docs/scale.md."""
_NO_LIMIT = 1e12
"""Bytes per second within one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One step, played and simulated."""

    num_servers: int
    num_episodes: int
    reply_tokens: int
    real_seconds: float
    simulated_seconds: float
    foreign: float
    """Share of the core that other programs took during the real step."""

    @property
    def error(self) -> float:
        """How much longer the simulated step is than the real one, relative to the real one."""
        return self.simulated_seconds / self.real_seconds - 1.0

    def __str__(self) -> str:
        return (
            f"{self.num_servers} servers, {self.num_episodes} episodes, replies of "
            f"{self.reply_tokens} tokens: real {self.real_seconds:.2f} s, simulated "
            f"{self.simulated_seconds:.2f} s ({self.error:+.1%}; other programs took "
            f"{self.foreign:.1%} of the core)"
        )


def use_one_core() -> None:
    """Restrict this process, and those that it starts from now on, to one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def compare(
    folder: Path,
    costs: Costs,
    *,
    num_servers: int,
    num_episodes: int,
    reply_tokens: int = 128,
    speed: EngineSpeed = SPEED,
) -> Comparison:
    """Play one step on real servers, and simulate it.

    All processes share one core: call `use_one_core` first.

    Args:
        folder: An empty folder.
        costs: Costs of the parts on this machine, with replies of the same length.
        num_servers: Server processes, with one GPU each.
        num_episodes: Episodes of the step.
        reply_tokens: Length of each reply.
        speed: Speed of each GPU.
    """
    with running_fleet(folder, num_servers, speed=speed, reply_tokens=reply_tokens) as fleet:
        fleet.push(made_adapters(SMALL_SHAPES, fleet.names))
        # The first games fill caches.
        real_step(fleet, num_servers * GROUP)
        real = real_step(fleet, num_episodes)
    cluster = Cluster(
        num_servers=num_servers,
        gpus_per_server=1,
        speed=speed,
        bytes_per_second=_NO_LIMIT,
        one_core=True,
    )
    work = Work(
        num_episodes=num_episodes, group_size=GROUP, games=games_of(real.groups), adapter_bytes=0
    )
    step = simulate(cluster, work, costs.slowed(real.foreign))
    return Comparison(
        num_servers=num_servers,
        num_episodes=num_episodes,
        reply_tokens=reply_tokens,
        real_seconds=real.seconds,
        simulated_seconds=step.games_seconds + step.after_seconds,
        foreign=real.foreign,
    )
