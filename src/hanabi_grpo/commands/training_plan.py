"""Checks of a training run that need neither model nor server, for `train` and the doctor."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hanabi_grpo.client.curves import Curve, validation_curves, validation_setups
from hanabi_grpo.client.fleet import each_server
from hanabi_grpo.commands.nodes import Nodes, check_nodes, read_nodes
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import DatasetRow
from hanabi_grpo.rollout.datasets import check_payoffs, num_steps, played_setups, steps_reason
from hanabi_grpo.rollout.handshake import MAX_CLAIMS
from hanabi_grpo.rollout.messages import MAX_GAMES
from hanabi_grpo.settings import BatchPlan, Settings, batch_plan
from hanabi_grpo.settings.steps import plan_line
from hanabi_grpo.settings.teachers import check_something_teaches


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What a run does in a step, how many steps it takes, and on how many machines."""

    batch: BatchPlan
    num_steps: int
    """Steps of the whole run, including those before a resume."""
    nodes: Nodes
    steps_reason: str = ""
    """Why this number of steps, if that is not obvious; see `datasets.steps_reason`."""
    curves: tuple[Curve, ...] = ()
    """What policy versions are validated on; empty without validation."""

    def line(self, settings: Settings) -> str:
        """Return the arithmetic of a step as one line."""
        return plan_line(settings, self.batch, self.num_steps, self.steps_reason)


def plan_training(
    settings: Settings,
    rows: Sequence[DatasetRow],
    environ: Mapping[str, str] = os.environ,
) -> TrainingPlan:
    """Plan a run, and refuse settings, datasets and nodes that contradict each other.

    Args:
        settings: Settings of the run.
        rows: The dataset's valid rows.
        environ: Variables that name the machines of the trainer.

    Raises:
        SettingsError: They contradict each other; the message says what is allowed.
    """
    batch = batch_plan(settings)
    check_payoffs(settings, played_setups(rows))
    _check_num_setups(settings, rows)
    _check_requests(settings)
    steps = num_steps(settings, rows)
    check_something_teaches(settings, steps)
    curves = validation_curves(settings)
    nodes = read_nodes(environ)
    check_nodes(nodes, settings, batch)
    return TrainingPlan(
        batch=batch,
        num_steps=steps,
        nodes=nodes,
        steps_reason=steps_reason(settings, rows),
        curves=curves,
    )


def _check_num_setups(settings: Settings, rows: Sequence[DatasetRow]) -> None:
    """Refuse more different games than a server checks when a run begins."""
    setups = {*played_setups(rows), *validation_setups(settings)}
    if len(setups) > MAX_CLAIMS:
        raise SettingsError(
            f"{len(setups)} different games in DATASET and the validations: a run may have at most "
            f"{MAX_CLAIMS}, each of which the server compares with its own; use fewer presets, "
            "options or instructions."
        )


def _check_requests(settings: Settings) -> None:
    """Refuse steps whose games cannot be requested."""
    if settings.num_generations > MAX_GAMES:
        raise SettingsError(
            f"NUM_GENERATIONS={settings.num_generations}: a group is one request, which may have "
            f"at most {MAX_GAMES} games; use smaller groups, and more of them with "
            "HANABI_TASKS_PER_STEP."
        )
    if not settings.overlap:
        return
    servers = len(each_server(settings))
    games = math.ceil(settings.tasks_per_step / servers) * settings.num_generations
    if games > MAX_GAMES:
        raise SettingsError(
            f"HANABI_TASKS_PER_STEP={settings.tasks_per_step} with NUM_GENERATIONS="
            f"{settings.num_generations} and HANABI_OVERLAP={settings.overlap}: with overlap a "
            f"step is one request to each of {servers} server(s), here for {games} games, and a "
            f"request may have at most {MAX_GAMES}; use fewer tasks, more servers, or "
            "HANABI_OVERLAP=0."
        )
