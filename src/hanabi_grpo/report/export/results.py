"""Evaluations that are of certain adapters: told by digests of the weights, not by the names that repeat over runs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result
from hanabi_grpo.runs.saved_adapters import SavedAdapters
from hanabi_grpo.settings.refs import BASE, is_frozen, seat_adapter

OTHER = "another adapter"
_DTYPES = ("float32", "bfloat16", "float16")
"""What a trainer may push weights in; see HANABI_DTYPE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedResult:
    """An evaluation, with its seats as these adapters' names.

    Example:
        PlayedResult(result=…, orders=(("player_0", "iggi"), ("iggi", "player_0")))
    """

    result: EvaluationResult
    orders: tuple[tuple[str, ...], ...]
    """Per seat order and seat: an adapter's name, a script's, "base", or "another adapter"."""

    @property
    def players(self) -> frozenset[str]:
        """Everybody who sat there."""
        return frozenset(seat for order in self.orders for seat in order)

    @property
    def line_up(self) -> str:
        """Return e.g. "player_0, iggi in every seat order"."""
        return ", ".join(self.orders[0]) + (" in every seat order" if len(self.orders) > 1 else "")


def played_results(
    saved: SavedAdapters, *, given: Sequence[Path], lying: Sequence[Path]
) -> tuple[tuple[PlayedResult, ...], tuple[str, ...]]:
    """Return the evaluations in which one of the adapters played, and sentences about files that are of others.

    Args:
        saved: The adapters.
        given: Files that were named, and have to be such evaluations.
        lying: Files that were found beside the adapters.

    Raises:
        SettingsError: A given file is no evaluation of these adapters.
    """
    frozen, pushed = _frozen(saved), _pushed(saved)
    results: list[PlayedResult] = []
    left_out = []
    for path in dict.fromkeys([*given, *lying]):
        try:
            found = _played(read_result(path), frozen, pushed, path, saved.step)
        except SettingsError as error:
            if path in given:
                raise
            left_out.append(str(error))
            continue
        if found not in results:
            results.append(found)
    return tuple(results), tuple(left_out)


def _played(
    result: EvaluationResult, frozen: dict[str, str], pushed: dict[str, str], path: Path, step: int
) -> PlayedResult:
    def name(seat: str) -> str:
        adapter = seat_adapter(seat)
        if adapter is None:
            return seat if seat in SCRIPTED or seat == BASE else OTHER
        digest = frozen.get(adapter[0]) if is_frozen(seat) else pushed.get(result.policies.get(adapter[0], ""))
        return digest or OTHER

    found = PlayedResult(result=result, orders=tuple(tuple(map(name, order)) for order in result.seats))
    if not found.players & {*frozen.values()}:
        shown = ", ".join(dict.fromkeys(seat for order in result.seats for seat in order))
        raise SettingsError(
            f"{path}: is of {shown}, whose weights are not those of this checkpoint (step {step}); evaluate the folder "
            "that is exported, and give its --out."
        )
    return found


def _frozen(saved: SavedAdapters) -> dict[str, str]:
    """Return what a server calls each adapter when a checkpoint is lent to it."""
    return {
        frozen_name(hashlib.sha256(weights).hexdigest(), config): name
        for name, (weights, config) in saved.adapters.items()
    }


def _pushed(saved: SavedAdapters) -> dict[str, str]:
    """Return the digest of each adapter as a trainer pushes it: without the file's header, in the run's format."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    digests = {}
    for name, (weights, _) in saved.adapters.items():
        try:
            tensors = load(weights)
        except SafetensorError as error:
            raise SettingsError(f"{name}: its weights are no safetensors file ({error}).") from error
        for dtype in _DTYPES:
            cast = {key: tensor.to(getattr(torch, dtype)) for key, tensor in tensors.items()}
            digests[hashlib.sha256(save(cast)).hexdigest()] = name
    return digests
