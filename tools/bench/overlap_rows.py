"""R6 on a simulated server: the time of a step when games and learning take fixed times.

It is measured with and without overlap.

`training.overlap` is real; only the server's games and the learning are replaced by sleeps. The
rows therefore show how close the trainer's own machinery comes to its bounds, the sum of both parts
and the longer part, without the noise of an engine. They do not show how much faster a run gets if
server and trainer compete for the same cores.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from bench.row import Row, at_most

if TYPE_CHECKING:
    from hanabi_grpo.client.answers import RolloutResult
    from hanabi_grpo.training.link import GamesRequest

SHAPES = ((0.2, 0.2), (0.3, 0.1), (0.1, 0.3))
"""Seconds of a step's games, seconds of its learning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Means over the steps of one simulated run, in seconds.

    These are measured times: a sleep may last longer than requested.
    """

    step: float
    """The whole step."""
    games: float
    """Its games."""
    learning: float
    """Its learning."""
    staleness: tuple[int, ...]
    """For each step, the age of its games in versions."""


@dataclass(slots=True)
class SimulatedServer:
    """Plays one request at a time, each for the same number of seconds and with its version."""

    seconds: float
    """Duration of each request's games."""
    served: int = -1
    """The served version."""
    played: list[float] = field(default_factory=list)
    """Seconds that each request's games took."""
    _engine: threading.Lock = field(default_factory=threading.Lock)

    @property
    def incidents(self) -> "SimulatedServer":
        """Records incidents, which must not occur here."""
        return self

    def record(self, kind: str, message: str, **_: object) -> None:
        """Fail, because a request was lost."""
        raise RuntimeError(f"{kind}: {message}")

    def play(
        self, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
    ) -> "RolloutResult":
        """Play now."""
        return self.fetch(self.prepare(tasks, names, version))

    def prepare(
        self, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
    ) -> "GamesRequest":
        """Make a request."""
        from hanabi_grpo.training.link import GamesRequest

        if version != self.served:
            raise ValueError(f"version {version} was requested, but {self.served} is served")
        return GamesRequest(tasks=tasks, own=(), version=version, instance_id="simulated")

    def fetch(self, request: "GamesRequest") -> "RolloutResult":
        """Wait as long as the games take."""
        from hanabi_grpo.client.answers import RolloutResult

        with self._engine:
            start = time.perf_counter()
            time.sleep(self.seconds)
            self.played.append(time.perf_counter() - start)
        return RolloutResult(groups=[])

    def accept(self, request: "GamesRequest", result: "RolloutResult") -> "RolloutResult":
        """Return the answer unchanged."""
        return result


def simulate(games: float, learning: float, *, overlap: bool, steps: int) -> StepTimes:
    """Run a training loop whose games and learning take fixed times.

    Args:
        games: Seconds of a step's games.
        learning: Seconds of its learning.
        overlap: With HANABI_OVERLAP=1 or 0.
        steps: Steps of the loop, at least 3. The first and the last are not counted, because
            nothing runs in parallel with the games of the first or the learning of the last.
    """
    from hanabi_grpo.training.overlap import PlayAhead

    server = SimulatedServer(games)
    learning_times = []
    starts = []
    ages = []
    # It requests games but does not look at them.
    ahead = PlayAhead(cast(Any, server), ("player_0",))
    tasks: list[Any] = [[{"task": number}] for number in range(steps)]
    for step in range(steps):
        starts.append(time.perf_counter())
        server.served = step
        taken = ahead.take(tasks[step], step)
        ages.append(step - taken.version)
        if overlap and step + 1 < steps:
            ahead.ask(tasks[step + 1], step)
        start = time.perf_counter()
        time.sleep(learning)
        learning_times.append(time.perf_counter() - start)
    num_counted = steps - 2
    # With overlap, a step's games are played while the previous step learns.
    game_times = server.played[2:] if overlap else server.played[1:-1]
    return StepTimes(
        step=(starts[-1] - starts[1]) / num_counted,
        games=sum(game_times) / num_counted,
        learning=sum(learning_times[1:-1]) / num_counted,
        staleness=tuple(ages),
    )


def overlap_rows(*, steps: int = 8) -> list[Row]:
    """Measure R6 with and without overlap, for games as long as learning, longer and shorter.

    Args:
        steps: Steps of each of the six runs, about 0.4 s each.
    """
    plain = [simulate(games, learning, overlap=False, steps=steps) for games, learning in SHAPES]
    ahead = [simulate(games, learning, overlap=True, steps=steps) for games, learning in SHAPES]
    shapes = ", ".join(f"{games:g}/{learning:g} s" for games, learning in SHAPES)
    how = (
        f"simulated server, games/learning of {shapes}; steps without the first and the last; "
        "wall clock"
    )
    return [
        Row(
            id="R6b",
            name="overlapped step ÷ the longer part, simulated",
            arms=("step", "longer of games and learning"),
            ratios=tuple(times.step / max(times.games, times.learning) for times in ahead),
            target=at_most(1.15),
            each=True,
            how=how,
            details={
                "shapes": SHAPES,
                "staleness": [max(times.staleness) for times in ahead],
                "steps": steps,
            },
        ),
        Row(
            id="R6c",
            name="synchronous step ÷ sum of its parts, simulated",
            arms=("step", "games + learning"),
            ratios=tuple(times.step / (times.games + times.learning) for times in plain),
            target=at_most(1.05),
            each=True,
            how=how,
            details={
                "shapes": SHAPES,
                "staleness": [max(times.staleness) for times in plain],
                "steps": steps,
            },
        ),
    ]
