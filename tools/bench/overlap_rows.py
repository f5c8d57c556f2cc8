"""R6 on a simulated server: what a step takes when games and learning take fixed times, with
overlap and without.

`training.overlap` is the real one; only the server's games and the learning are sleeps. So the rows
say how close the trainer's own machinery comes to its bounds, the sum of both parts and the longer
of them, without the noise of an engine. They do not say how much faster a run gets where server and
trainer compete for the same cores.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.row import Row, at_most

if TYPE_CHECKING:
    from hanabi_grpo.client.answers import RolloutResult
    from hanabi_grpo.training.link import GamesRequest

SHAPES = ((0.2, 0.2), (0.3, 0.1), (0.1, 0.3))
"""Seconds of a step's games, seconds of its learning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Means over the steps of one simulated run, in seconds as they really were; a sleep may last
    longer than asked.
    """

    step: float
    games: float
    learning: float
    staleness: tuple[int, ...]
    """Per step the age of its games, in versions."""


@dataclass(slots=True)
class SimulatedServer:
    """Plays one request at a time, each for the same number of seconds, with the version that it
    was asked for.
    """

    seconds: float
    served: int = -1
    played: list[float] = field(default_factory=list)
    """Seconds that each request's games took."""
    _engine: threading.Lock = field(default_factory=threading.Lock)

    @property
    def incidents(self) -> "SimulatedServer":
        """Nothing may be lost here."""
        return self

    def record(self, kind: str, message: str, **_: object) -> None:
        """Refuse to go on: a request was lost."""
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
            raise ValueError(f"version {version} was asked for, {self.served} is served")
        return GamesRequest(tasks=tasks, own=(), version=version, instance_id="simulated")

    def fetch(self, request: "GamesRequest") -> "RolloutResult":
        """Take the time that the games take."""
        from hanabi_grpo.client.answers import RolloutResult

        with self._engine:
            start = time.perf_counter()
            time.sleep(self.seconds)
            self.played.append(time.perf_counter() - start)
        return RolloutResult(groups=[])

    def accept(self, request: "GamesRequest", result: "RolloutResult") -> "RolloutResult":
        """Return the answer as it is."""
        return result


def simulate(games: float, learning: float, *, overlap: bool, steps: int) -> StepTimes:
    """Run a training loop whose games and learning take fixed times.

    Args: games: Seconds of a step's games. learning: Seconds of its learning. overlap: With
        HANABI_OVERLAP=1 or 0. steps: Of the loop, at least 3. The first one and the last one are
        not counted: nothing runs beside the games of the one or the learning of the other.
    """
    from hanabi_grpo.training.overlap import PlayAhead

    server, learned, starts, ages = SimulatedServer(games), [], [], []
    ahead = PlayAhead(server, ("player_0",))
    tasks = [[{"task": number}] for number in range(steps)]
    for step in range(steps):
        starts.append(time.perf_counter())
        server.served = step
        taken = ahead.take(tasks[step], step)
        ages.append(step - taken.version)
        if overlap and step + 1 < steps:
            ahead.ask(tasks[step + 1], step)
        start = time.perf_counter()
        time.sleep(learning)
        learned.append(time.perf_counter() - start)
    beside = server.played[2:] if overlap else server.played[1:-1]
    return StepTimes(
        step=(starts[-1] - starts[1]) / (steps - 2),
        games=sum(beside) / (steps - 2),
        learning=sum(learned[1:-1]) / (steps - 2),
        staleness=tuple(ages),
    )


def overlap_rows(*, steps: int = 8) -> list[Row]:
    """Measure R6 with and without overlap, for games that take as long as learning, longer and
    shorter.

    Args:
        steps: Of each of the six runs, about 0.4 s each.
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
            ratios=tuple(one.step / max(one.games, one.learning) for one in ahead),
            target=at_most(1.15),
            how=how,
            details={
                "shapes": SHAPES,
                "staleness": [max(one.staleness) for one in ahead],
                "steps": steps,
            },
        ),
        Row(
            id="R6c",
            name="synchronous step ÷ sum of its parts, simulated",
            arms=("step", "games + learning"),
            ratios=tuple(one.step / (one.games + one.learning) for one in plain),
            target=at_most(1.05),
            how=how,
            details={
                "shapes": SHAPES,
                "staleness": [max(one.staleness) for one in plain],
                "steps": steps,
            },
        ),
    ]
