"""Played cells in a folder, one file each: what is there is not played again, what does not fit is refused."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.plan import Plan, PlannedCell
from hanabi_grpo.evaluation.evaluate import evaluate_line_up
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result, result_to_json, write_document

_SHOWN = 80
"""Characters of a value in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One team's games."""

    result: EvaluationResult
    low: float
    """Lower end of the mean's 95 % bootstrap interval."""
    high: float


class CellStore:
    """The folder `cells/` of a cross-play."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`/cells; it is made with the first cell."""
        self._folder = folder / "cells"

    def ledger(self, cell: PlannedCell) -> Path:
        """Return the file in which an interrupted cell keeps its finished deals."""
        return self._folder / f"{cell.name}.part.jsonl"

    def find(self, cell: PlannedCell) -> Cell | None:
        """Return a cell that was played already.

        Raises:
            SettingsError: There is one of other players, deals or settings, or a file that is no cell.
        """
        path = self._path(cell)
        if not path.exists():
            return None
        result = read_result(path)
        try:
            document = json.loads(path.read_bytes())
            found, (low, high) = dict(document["key"]), map(float, document["summary"]["interval_95"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SettingsError(f"{path}: not a cell of a cross-play ({error!r}); move it away.") from error
        _check_key(path, found, json.loads(json.dumps(cell.key)))
        if result.num_deals != cell.key["deals"]:
            raise SettingsError(f"{path}: damaged ({result.num_deals} deals, says {cell.key['deals']}); move it away.")
        # Left where the command was stopped between writing the cell and this.
        self.ledger(cell).unlink(missing_ok=True)
        return Cell(result=result, low=low, high=high)

    def add(self, cell: PlannedCell, result: EvaluationResult) -> Cell:
        """Write a finished cell.

        Raises:
            SettingsError: It cannot be written.
        """
        write_document(self._path(cell), {"key": cell.key, **result_to_json(result)})
        self.ledger(cell).unlink(missing_ok=True)
        estimate = result.estimate
        return Cell(result=result, low=estimate.low, high=estimate.high)

    def _path(self, cell: PlannedCell) -> Path:
        return self._folder / f"{cell.name}.json"


def find_cells(plan: Plan, store: CellStore) -> dict[str, Cell]:
    """Return the cells that were played already, by name.

    Raises:
        SettingsError: One of them does not fit.
    """
    found = {cell.name: store.find(cell) for cell in plan.cells}
    return {name: cell for name, cell in found.items() if cell is not None}


def play_cells(
    plan: Plan,
    store: CellStore,
    cells: dict[str, Cell],
    *,
    served: Served | None,
    begin: Callable[[PlannedCell], None],
    progress: Callable[[int], None],
) -> None:
    """Play what is missing, cell by cell; each is in the folder and in `cells` as soon as it is finished.

    Args:
        plan: What to play.
        store: Where finished cells go.
        cells: By name; what is in it is not played.
        served: Needed unless every entry is a script.
        begin: Receives each cell before its first deal.
        progress: Receives the number of the cell's deals that are done.

    Raises:
        ServerError: The server failed, or dropped a game.
        SettingsError: The rest of an interrupted cell is of other work, or the disk is full.
    """
    for cell in plan.cells:
        if cell.name in cells:
            continue
        begin(cell)
        result = evaluate_line_up(
            cell.line_up,
            plan.config,
            plan.num_deals,
            suite=plan.suite,
            served=served if cell.line_up.needs_server else None,
            rotate=False,
            label=cell.label,
            ledger=store.ledger(cell),
            progress=progress,
            clear=False,
        )
        cells[cell.name] = store.add(cell, result)


def _check_key(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    other = [
        f"{name}: there {str(found.get(name))[:_SHOWN]}, here {str(wanted.get(name))[:_SHOWN]}"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    ]
    if other:
        raise SettingsError(
            f"{path}: was played otherwise ({'; '.join(other)}). Give the entries in the order and with the options of "
            "that folder, or choose another --out."
        )
