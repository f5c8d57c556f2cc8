"""The model's speeds from a run's own figures, and the model against another run's."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hanabi_grpo.dynamics.history import read_history
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.simulation.model import Assumptions, Layout, StepTimes, Work, step_times

_FIRST_STEPS = 5
"""Left out, where a run has twice as many: caches fill and processes settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run says of itself: medians over its steps."""

    name: str
    steps: int
    work: Work
    layout: Layout
    overlap: bool
    times: StepTimes
    step: float
    """Seconds of a whole step, with all that is in no phase."""


def measure(run: Path) -> Measured:
    """Read a run folder's metrics.jsonl and settings.json.

    Raises:
        SettingsError: A file is missing, or has no phase times.
    """
    path = run / "metrics.jsonl"
    try:
        rows = read_history(path)
        settings = json.loads((run / "settings.json").read_text(encoding="utf-8"))["settings"]
        rows = rows[_FIRST_STEPS:] if len(rows) >= 2 * _FIRST_STEPS else rows
        times = StepTimes(**{name: _median(rows, f"time/{name}") for name in ("push", "rollout", "train")})
        work = Work(
            deals=int(settings["HANABI_DEALS_PER_STEP"]),
            games=int(settings["NUM_GENERATIONS"]),
            players=int(settings["HANABI_PLAYERS"]),
            turns=_median(rows, "turns_per_game"),
            reply_tokens=median(row["reply_tokens"] / (row["games"] * row["turns_per_game"]) for row in rows),
            updates=int(settings.get("HANABI_UPDATES_PER_STEP", 1)),
            games_at_once=int(settings.get("HANABI_GAMES_AT_ONCE", Work().games_at_once)),
        )
        layout = Layout(
            servers=str(settings["VLLM_SERVER_HOST"]).count(",") + 1,
            gpus=int(settings["VLLM_TENSOR_PARALLEL_SIZE"]) * int(settings["VLLM_DATA_PARALLEL_SIZE"]),
            ranks=int(settings["NPROC_PER_NODE"]),
        )
        overlap = bool(settings.get("HANABI_OVERLAP", False))
        step = _median(rows, "step_time") if "step_time" in rows[-1] else times.plain
    except (OSError, ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise SettingsError(
            f"{run}: no run to measure ({error!r}); give a run folder with metrics.jsonl (time/push, time/rollout, "
            "time/train of a few steps) and settings.json."
        ) from error
    if not (times.rollout > 0 and times.train > 0 and work.reply_tokens > 0):
        raise SettingsError(f"{path}: games and learning must have taken time; they say {times}.")
    return Measured(name=run.name, steps=len(rows), work=work, layout=layout, overlap=overlap, times=times, step=step)


def calibrate(measured: Measured, assumed: Assumptions) -> tuple[Assumptions, tuple[str, ...]]:
    """Return assumptions with which the model gives a run's own phases, and the names of those that were fitted.

    One run tells one speed of the engine and one of the trainer; how they depend on the number of sequences, GPUs and
    ranks stays as assumed.
    """
    probe = step_times(measured.work, measured.layout, replace(assumed, push_seconds=0.0, train_fixed=0.0))
    fixed = measured.work.updates * measured.work.players * assumed.train_fixed
    if fixed >= measured.times.train:
        raise SettingsError(f"train_fixed={assumed.train_fixed:g}: longer than {measured.name} learned; take less.")
    fitted = {
        # Both parts are in inverse proportion to their speeds.
        "engine_peak": assumed.engine_peak * probe.rollout / measured.times.rollout,
        "train_speed": assumed.train_speed * probe.train / (measured.times.train - fixed),
        "push_seconds": max(0.0, measured.times.push - probe.push),
    }
    return replace(assumed, **fitted), tuple(fitted)


def compared(measured: Measured, assumed: Assumptions) -> dict[str, Mapping[str, float]]:
    """Return what the model says of a run, what was measured, and the error as a share of that."""
    said = step_times(measured.work, measured.layout, assumed)
    models = {**asdict(said), "step": said.overlapped if measured.overlap else said.plain}
    reals = {**asdict(measured.times), "step": measured.step}
    return {
        name: {"model": models[name], "measured": real, "error": models[name] / real - 1 if real else 0.0}
        for name, real in reals.items()
    }


def _median(rows: list[dict[str, Any]], name: str) -> float:
    return float(median(row[name] for row in rows if row.get(name) is not None))
