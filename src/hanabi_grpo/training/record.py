"""Records of a step: its metrics, its games, and its incidents."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean
from typing import Any

import torch

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.rollout.recordings import write_episodes
from hanabi_grpo.settings import BatchPlan, Settings
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.isolation import BAD_STEPS_IN_A_ROW
from hanabi_grpo.training.metrics import episode_metrics, peak_gib, utilisation
from hanabi_grpo.training.micro_batch import MicroBatch, useful_share
from hanabi_grpo.training.overlap import StepGames
from hanabi_grpo.training.resampling import UsedGames

SHOWN_PROBLEMS = 3
"""Number of reasons for lost games that an error lists."""
_OPERATIONS_PER_WEIGHT = 4.0
"""Operations per token and weight: 2 for the forward pass and 2 for the gradient of the input.
Frozen weights have no gradient of their own."""
_SHORTEST_SECONDS = 1e-9
"""Replaces a duration of 0 in a division."""


class StepMetrics:
    """The figures of the step in progress; a figure that is added several times is averaged."""

    def __init__(self) -> None:
        """Start empty."""
        self._values: dict[str, list[float]] = defaultdict(list)
        self._sums: dict[str, tuple[float, float]] = {}
        """By figure, the sum and the number of values."""

    def add(self, figures: Mapping[str, float]) -> None:
        """Add figures by name."""
        for name, value in figures.items():
            self._values[name].append(value)

    def add_mean(self, name: str, total: float, count: float) -> None:
        """Add a part of a figure that is a mean over values, not over the parts.

        Args:
            name: Name of the figure.
            total: Sum of the part's values.
            count: Number of the part's values, above 0.
        """
        sum_before, count_before = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (sum_before + total, count_before + count)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of a block in seconds."""
        start = time.perf_counter()
        yield
        self.add({name: time.perf_counter() - start})

    def take(self) -> dict[str, float]:
        """Return the means, and reset."""
        means = {name: fmean(values) for name, values in self._values.items()}
        means |= {name: total / count for name, (total, count) in self._sums.items()}
        self._values.clear()
        self._sums.clear()
        return means


class GameRecorder:
    """Counts a step's games, writes recordings, and stops a run that gets no usable games."""

    def __init__(
        self,
        settings: Settings,
        plan: BatchPlan,
        setups: Mapping[str, Setup[Any]],
        link: Link,
        *,
        end_id: int | None,
        end_ids: Mapping[str, int | None] | None = None,
        is_main_process: bool,
        report: Callable[..., None],
    ) -> None:
        """Prepare.

        Args:
            settings: The run's settings.
            plan: Number of games and tasks that a step requests.
            setups: The environments that are played, by the hash of their rules.
            link: Link to the server, for its log and the names of partners.
            end_id: The token that ends a reply.
            end_ids: End token of each adapter whose base model is not player_0's.
            is_main_process: Whether this process writes files.
            report: Called as report(kind, message, **details) for an incident.
        """
        self._settings = settings
        self._plan = plan
        self._setups = setups
        self._link = link
        self._end_id = end_id
        self._end_ids = end_ids
        self._is_main_process = is_main_process
        self._report = report
        self._num_empty_steps = 0

    def record(
        self,
        used: UsedGames,
        version: int,
        seats: tuple[str, ...],
        partner_names: Mapping[str, str],
    ) -> dict[str, float]:
        """Record a step's games; returns its figures, see `metrics.episode_metrics`.

        Args:
            used: The games. Figures cover the tasks as they were drawn, because selecting groups
                with different returns (HANABI_RESAMPLE_FLAT) would bias the score.
            version: Number of finished steps.
            seats: The run's own adapters in their seats.
            partner_names: The name of each partner in metrics, by its seat reference.

        Raises:
            NonFiniteError: Too many steps in a row had no usable game.
        """
        settings = self._settings
        num_games = sum(len(group) for group in used.drawn)
        metrics = episode_metrics(
            used.drawn,
            self._setups,
            games_dropped=self._plan.games - num_games,
            groups_dropped=self._plan.tasks - len(used.drawn),
            own_seats=seats,
            partners=partner_names if settings.partners else None,
            reply_limit=settings.max_completion_length,
            end_id=self._end_id,
            end_ids=self._end_ids,
        )
        for problem in used.problems:
            self._report("games_dropped", problem, step=version)
        if self._is_main_process:
            self._write(used, version)
        self._count_empty(used, version)
        return metrics

    def _write(self, used: UsedGames, version: int) -> None:
        records: list[Callable[[], object]] = [self._link.copy_log]
        if version % self._settings.episodes_every == 0:
            write = partial(write_episodes, self._link.run_folder, version, used.groups)
            records.append(write)
        for record in records:
            try:
                record()
            except OSError as error:
                # E.g. a full disk, or a server that refuses its log. A lost record must neither
                # stop the run nor prevent the other record.
                reason = error.strerror or error
                self._report("records_failed", f"{self._link.run_folder}: {reason}", step=version)

    def _count_empty(self, used: UsedGames, version: int) -> None:
        if used.groups:
            self._num_empty_steps = 0
            return
        self._num_empty_steps += 1
        self._report(
            "step_dropped",
            "no group of episodes could be used; this step makes no update",
            step=version,
        )
        if self._num_empty_steps >= BAD_STEPS_IN_A_ROW:
            reasons = "; ".join(used.problems[:SHOWN_PROBLEMS])
            raise NonFiniteError(
                f"{self._num_empty_steps} steps in a row had no usable game; the last reasons: "
                f"{reasons}. Check the server's log, then continue with RESUME=latest."
            )


class LoadMeter:
    """Measures how fast the run plays and learns, and its peak memory."""

    def __init__(self, device: torch.device, num_parameters: int) -> None:
        """Prepare.

        Args:
            device: Where the model is.
            num_parameters: Number of parameters of the base model and all adapters.
        """
        self._device = device
        self._num_parameters = num_parameters
        self._num_learned_tokens = 0
        self._batches_ready_at = time.perf_counter()

    def measure(
        self,
        batches: Sequence[MicroBatch],
        games: StepGames,
        used: UsedGames,
        start: float,
    ) -> dict[str, float]:
        """Return the step's figures of load; call it when the step's micro-batches are ready.

        `time/train`, `tokens/learned_per_second` and `utilisation/learning` are those of the
        previous step, which ended when this one began.

        Args:
            batches: This rank's micro-batches.
            games: The step's games, for their duration.
            used: The games that are counted.
            start: When the step began, by `time.perf_counter`.
        """
        learning_seconds = start - self._batches_ready_at
        num_reply_tokens = sum(
            len(turn.reply_ids)
            for group in used.drawn
            for episode in group
            for turn in episode.turns
        )
        figures = {
            "time/rollout": games.rollout_seconds,
            "time/train": learning_seconds,
            "memory/peak_gib": peak_gib(self._device),
            "tokens/sampled_per_second": num_reply_tokens
            / max(games.rollout_seconds, _SHORTEST_SECONDS),
            "tokens/useful_share": useful_share(batches),
        }
        if games.result.prompt_tokens:
            cached_share = games.result.cached_tokens / games.result.prompt_tokens
            figures["tokens/cached_share"] = cached_share
        if self._num_learned_tokens:
            per_second = self._num_learned_tokens / learning_seconds
            figures["tokens/learned_per_second"] = per_second
            operations = _OPERATIONS_PER_WEIGHT * self._num_parameters * self._num_learned_tokens
            figures |= utilisation(self._device, operations, learning_seconds)
        self._num_learned_tokens = sum(batch.num_tokens for batch in batches)
        self._batches_ready_at = time.perf_counter()
        return figures
