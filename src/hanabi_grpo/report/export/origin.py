"""Where adapters come from: the settings they were trained with, their score in training, and their
evaluations.

An evaluation is of certain adapters by the digests of their weights, not by names, which repeat
over runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result
from hanabi_grpo.runs.history import read_history
from hanabi_grpo.runs.run_folder import recorded_settings
from hanabi_grpo.runs.saved_adapters import SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import variables
from hanabi_grpo.settings.refs import BASE, is_frozen, seat_adapter
from hanabi_grpo.settings.saved import with_current_names
from hanabi_grpo.tracking.artifact import EVALUATIONS, SCORE, find_evaluations
from hanabi_grpo.tracking.record import RunningScore, running_score

PUBLISHED = "settings"
"""Fact of an exported manifest: the settings that are fit for publishing."""
OTHER = "another adapter"
_TRAINING = (
    "HANABI_ADAPTERS",
    "HANABI_ADVANTAGE",
    "HANABI_ADVANTAGE_SCALE",
    "NUM_GENERATIONS",
    "HANABI_TASKS_PER_STEP",
    "LEARNING_RATE",
    "BETA",
    "HANABI_ENTROPY_BONUS",
    "HANABI_ENTROPY_TARGET",
    "SEED",
)
_DTYPES = ("float32", "bfloat16", "float16")
"""What a trainer may push weights in; see HANABI_DTYPE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedResult:
    """An evaluation, with its seats as these adapters' names."""

    result: EvaluationResult
    orders: tuple[tuple[str, ...], ...]
    """Per seat order and seat: the name of an adapter or script, "base", or "another adapter"."""

    @property
    def players(self) -> frozenset[str]:
        """Everybody who sat there."""
        return frozenset(seat for order in self.orders for seat in order)

    @property
    def lineup(self) -> str:
        """Return e.g. "player_0, iggi in every seat order"."""
        return ", ".join(self.orders[0]) + (" in every seat order" if len(self.orders) > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """All that is known of a checkpoint."""

    folder: Path
    """The checkpoint, or a folder like one."""
    saved: SavedAdapters
    settings: Mapping[str, Any]
    """By variable; no paths, no addresses, no secrets. Empty where the settings are unknown."""
    model: str
    """MODEL as it was trained on: a folder or a hub name; empty where that is unknown."""
    score: RunningScore | None
    """Of the last training games."""
    results: tuple[PlayedResult, ...]
    """Evaluations in which one of these adapters played."""
    places: tuple[Path, ...] = ()
    """Folders that may have games of its training: its own, its run's."""


def read_origin(folder: Path) -> Origin:
    """Read a run, a checkpoint, an artifact's folder, or an exported one; without whole adapters a
    SettingsError.
    """
    checkpoint = newest_checkpoint(folder)
    saved = read_adapters(checkpoint)
    own = checkpoint.absolute()
    runs = [own.parent, own.parent.parent] if own.parent.name == "artifacts" else [own.parent]
    around = (own, *(run for run in runs if (run / "settings.json").is_file()))
    values = next((found for place in around if (found := recorded_settings(place))), {})
    games = [
        one.env
        for one in variables(str(values.get("HANABI_ENV", "hanabi")))
        if one.section == "game"
    ]
    kept = {name: values[name] for name in (*games, *_TRAINING) if values.get(name) is not None}
    published = saved.facts.get(PUBLISHED)
    evaluations = [
        path for place in (checkpoint / EVALUATIONS, *around) for path in find_evaluations(place)
    ]
    return Origin(
        folder=checkpoint,
        saved=saved,
        settings=kept or (with_current_names(published) if isinstance(published, Mapping) else {}),
        model=str(saved.facts.get("model") or values.get("MODEL") or ""),
        score=_score(checkpoint, around, saved.step),
        results=_played_results(saved, evaluations),
        places=around,
    )


def _score(checkpoint: Path, around: Sequence[Path], step: int) -> RunningScore | None:
    try:
        data = json.loads((checkpoint / SCORE).read_bytes())
        mean, error = float(data["mean"]), data["standard_error"]
        return RunningScore(
            step=step,
            mean=mean,
            standard_error=error and float(error),
            num_steps=int(data["steps"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        pass
    rows = next((path for place in around if (path := place / "metrics.jsonl").is_file()), None)
    return running_score(read_history(rows), step) if rows else None


def _played_results(saved: SavedAdapters, evaluations: Sequence[Path]) -> tuple[PlayedResult, ...]:
    """Return the evaluations in which one of the adapters played, each once."""
    # What a server calls each adapter when a checkpoint is lent to it.
    frozen = {
        frozen_name(hashlib.sha256(weights).hexdigest(), config): name
        for name, (weights, config) in saved.adapters.items()
    }
    pushed, results = _pushed(saved), list[PlayedResult]()
    for path in evaluations:
        found = _played(read_result(path), frozen, pushed)
        if found.players & {*frozen.values()} and found not in results:
            results.append(found)
    return tuple(results)


def _played(
    result: EvaluationResult, frozen: Mapping[str, str], pushed: Mapping[str, str]
) -> PlayedResult:
    scripts = registry.get(result.env).policies if result.env in registry.names() else {}

    def name(seat: str) -> str:
        adapter = seat_adapter(seat)
        if adapter is None:
            return seat if seat in scripts or seat == BASE else OTHER
        return (
            frozen.get(adapter[0])
            if is_frozen(seat)
            else pushed.get(result.policies.get(adapter[0], ""))
        ) or OTHER

    return PlayedResult(
        result=result, orders=tuple(tuple(map(name, order)) for order in result.seats)
    )


def _pushed(saved: SavedAdapters) -> dict[str, str]:
    """Return the digest of each adapter as a trainer pushes it: without the file's header, in the
    run's format.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    digests = {}
    for name, (weights, _) in saved.adapters.items():
        try:
            tensors = load(weights)
        except SafetensorError as error:
            raise SettingsError(
                f"{name}: its weights are no safetensors file ({error})."
            ) from error
        for dtype in _DTYPES:
            cast = {key: tensor.to(getattr(torch, dtype)) for key, tensor in tensors.items()}
            digests[hashlib.sha256(save(cast)).hexdigest()] = name
    return digests
