"""Checks of a training run that need neither model nor server, for `train` and the doctor."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hanabi_grpo.client.curves import Curve, validation_curves
from hanabi_grpo.commands.nodes import Nodes, check_nodes, read_nodes
from hanabi_grpo.rollout.dataset_rows import DatasetRow
from hanabi_grpo.rollout.datasets import check_payoffs, num_steps, played_setups, steps_reason
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
