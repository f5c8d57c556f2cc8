"""Where adapters come from: the settings, the score and the evaluations of their training.

Evaluations are matched to adapters by the digests of their weights, not by names, which repeat
across runs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.history import read_history
from hanabi_grpo.runs.run_folder import recorded_settings
from hanabi_grpo.runs.saved_adapters import SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import variables
from hanabi_grpo.settings.refs import BASE, is_frozen, seat_adapter
from hanabi_grpo.settings.saved import with_current_names
from hanabi_grpo.tracking.artifact import EVALUATIONS, SCORE
from hanabi_grpo.tracking.record import RunningScore, running_score

PUBLISHED = "settings"
"""Fact of an exported manifest: the settings that are fit for publishing."""
OTHER = "another adapter"
"""Name of adapters that do not belong to this checkpoint."""
_TRAINING_SETTINGS = (
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
"""Settings of training that are fit for publishing."""
_DTYPES = ("float32", "bfloat16", "float16")
"""Formats in which a trainer may push weights; see HANABI_DTYPE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedResult:
    """An evaluation, with its seats by the names of these adapters."""

    result: EvaluationResult
    orders: tuple[tuple[str, ...], ...]
    """Per seat order and seat: the name of an adapter or script, "base", or "another adapter"."""

    @property
    def players(self) -> frozenset[str]:
        """All players of the evaluation."""
        return frozenset().union(*self.orders)

    @property
    def lineup(self) -> str:
        """The lineup, e.g. "player_0, iggi in every seat order"."""
        names = ", ".join(self.orders[0])
        return f"{names} in every seat order" if len(self.orders) > 1 else names


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Everything that is known about a checkpoint."""

    folder: Path
    """The checkpoint, or a folder like one."""
    saved: SavedAdapters
    settings: Mapping[str, Any]
    """By variable; no paths, no addresses, no secrets. Empty where the settings are unknown."""
    model: str
    """MODEL in training: a folder or a hub name; empty if unknown."""
    score: RunningScore | None
    """Score of the last training games."""
    results: tuple[PlayedResult, ...]
    """Evaluations in which one of these adapters played."""
    places: tuple[Path, ...] = ()
    """Folders that may have games of its training: the checkpoint's, and its run's."""


def read_origin(folder: Path) -> Origin:
    """Read where the adapters of a folder come from.

    Args:
        folder: A run, a checkpoint, an artifact's folder, or an exported one.

    Raises:
        SettingsError: The folder holds no whole adapters.
    """
    checkpoint = newest_checkpoint(folder)
    saved = read_adapters(checkpoint)
    places = _places(checkpoint)
    values = _first_settings(places)
    settings = _publishable(values)
    published = saved.facts.get(PUBLISHED)
    if not settings and isinstance(published, Mapping):
        settings = with_current_names(published)
    evaluations: list[EvaluationResult] = []
    for searched in (checkpoint / EVALUATIONS, *places):
        for stored in find_evaluations(searched).results:
            evaluations.append(stored.result)
    return Origin(
        folder=checkpoint,
        saved=saved,
        settings=settings,
        model=str(saved.facts.get("model") or values.get("MODEL") or ""),
        score=_training_score(checkpoint, places, saved.step),
        results=_played_results(saved, evaluations),
        places=places,
    )


def _places(checkpoint: Path) -> tuple[Path, ...]:
    """Return the checkpoint's folder, and its run's folder if it lies in one."""
    absolute = checkpoint.absolute()
    run_candidates = [absolute.parent]
    if absolute.parent.name == "artifacts":
        run_candidates.append(absolute.parent.parent)
    places = [absolute]
    for folder in run_candidates:
        if (folder / "settings.json").is_file():
            places.append(folder)
    return tuple(places)


def _first_settings(places: Sequence[Path]) -> dict[str, Any]:
    """Return the settings of the first folder that has some; {} if none has."""
    for folder in places:
        settings = recorded_settings(folder)
        if settings:
            return settings
    return {}


def _publishable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the game and of training."""
    env = str(values.get("HANABI_ENV", "hanabi"))
    names = []
    for variable in variables(env):
        if variable.section == "game":
            names.append(variable.env)
    names += _TRAINING_SETTINGS
    publishable = {}
    for name in names:
        value = values.get(name)
        if value is not None:
            publishable[name] = value
    return publishable


def _training_score(checkpoint: Path, places: Sequence[Path], step: int) -> RunningScore | None:
    """Return the score of an artifact, or else of the run's rows; None without either."""
    try:
        data = json.loads(read_bytes(checkpoint / SCORE, MAX_DOCUMENT_BYTES))
        error = data["standard_error"]
        return RunningScore(
            step=step,
            mean=float(data["mean"]),
            standard_error=float(error) if error else error,
            num_steps=int(data["steps"]),
        )
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        # The folder is not an artifact.
        pass
    for folder in places:
        metrics = folder / "metrics.jsonl"
        if metrics.is_file():
            return running_score(read_history(metrics), step)
    return None


def _played_results(
    saved: SavedAdapters, evaluations: Sequence[EvaluationResult]
) -> tuple[PlayedResult, ...]:
    """Return the evaluations in which one of the adapters played, each once."""
    # The name that a server gives each adapter when it is uploaded as a guest.
    names_of_guests = {}
    for name, (weights, config) in saved.adapters.items():
        digest = hashlib.sha256(weights).hexdigest()
        names_of_guests[frozen_name(digest, config)] = name
    names_by_digest = _digests_when_pushed(saved)
    own_names = set(names_of_guests.values())
    results: list[PlayedResult] = []
    for evaluation in evaluations:
        played = _with_names(evaluation, names_of_guests, names_by_digest)
        if played.players & own_names and played not in results:
            results.append(played)
    return tuple(results)


def _with_names(
    result: EvaluationResult,
    names_of_guests: Mapping[str, str],
    names_by_digest: Mapping[str, str],
) -> PlayedResult:
    """Return an evaluation with the names of these adapters in its seats.

    Args:
        result: The evaluation.
        names_of_guests: Name of each adapter by its name as a guest on a server.
        names_by_digest: Name of each adapter by the digest of its weights when a trainer pushed it.
    """
    scripts = set()
    if result.env in registry.names():
        scripts = set(registry.get(result.env).policies)

    def name_of(seat: str) -> str:
        adapter = seat_adapter(seat)
        if adapter is None:
            return seat if seat in scripts or seat == BASE else OTHER
        server_name, _ = adapter
        if is_frozen(seat):
            return names_of_guests.get(server_name, OTHER)
        return names_by_digest.get(result.policies.get(server_name, ""), OTHER)

    orders = [tuple(map(name_of, seats)) for seats in result.seats]
    return PlayedResult(result=result, orders=tuple(orders))


def _digests_when_pushed(saved: SavedAdapters) -> dict[str, str]:
    """Return each adapter's name by the digest of its weights as a trainer pushes them.

    A trainer pushes them without the file's header, in the run's format.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    names_by_digest = {}
    for name, (weights, _) in saved.adapters.items():
        try:
            tensors = load(weights)
        except SafetensorError as error:
            raise SettingsError(
                f"{name}: its weights are not a safetensors file ({error})."
            ) from error
        for dtype in _DTYPES:
            converted = {}
            for key, tensor in tensors.items():
                converted[key] = tensor.to(getattr(torch, dtype))
            digest = hashlib.sha256(save(converted)).hexdigest()
            names_by_digest[digest] = name
    return names_by_digest
