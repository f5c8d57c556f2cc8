"""Cross-play without a command: plans, played cells, and checkpoints for the server of tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.evaluation.crossplay.plan import Plan, make_plan, parse_entries, play_cells
from hanabi_grpo.evaluation.crossplay.summary import Summary, summarise
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from server_app import PEFT_CONFIG, adapter_bytes, make_identity
from training_runs import LAPTOP


def plan_of(
    *texts: str,
    tasks: int = 8,
    setup: Setup[Any] = LAPTOP,
    suite: str = "eval",
    served: Served | None = None,
) -> Plan:
    """Return the plan of a cross-play.

    Args:
        texts: The entries as they are typed.
        tasks: Tasks of a cell.
        setup: Environment and configuration.
        suite: Suite of the tasks.
        served: How models are played; None: only scripts play.
    """
    return make_plan(parse_entries(texts, setup), setup, tasks, suite=suite, served=served)


def play(plan: Plan, folder: Path, served: Served | None = None) -> dict[str, EvaluationResult]:
    """Play what is missing; returns the cells by name."""
    cells: dict[str, EvaluationResult] = {}
    play_cells(
        plan, folder, cells, served=served, begin=lambda cell: None, progress=lambda done: None
    )
    return cells


def summary_of(folder: Path, *texts: str, **options: Any) -> Summary:
    """Play a cross-play of scripts; `options` are those of `plan_of`."""
    plan = plan_of(*texts, **options)
    return summarise(plan, play(plan, folder))


def save_checkpoint(run: Path, step: int, values: Sequence[float]) -> Path:
    """Write a checkpoint with an adapter per player, of the base model of `make_identity`.

    Args:
        run: Folder of the run.
        step: Step of the checkpoint.
        values: Per player, the value that fills the adapter's weights.
    """
    identity = make_identity()

    def fill(partial: Path) -> None:
        for number, value in enumerate(values):
            folder = partial / f"player_{number}"
            folder.mkdir()
            (folder / "adapter_config.json").write_text(json.dumps(PEFT_CONFIG))
            (folder / "adapter_model.safetensors").write_bytes(adapter_bytes(value))

    run.mkdir(parents=True, exist_ok=True)
    facts = identity.model_dump(include={"model_fingerprint", "tokenizer_hash", "chat_hash"})
    return write_checkpoint(run, step, fill, facts, needed_bytes=10_000)
