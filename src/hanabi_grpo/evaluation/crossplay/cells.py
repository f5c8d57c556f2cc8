"""Played cells in a folder, one file each: what is there is not played again, what does not fit is refused."""

import json
from collections.abc import Callable
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.plan import Plan, PlannedCell
from hanabi_grpo.evaluation.evaluate import evaluate_line_up
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result, result_to_json, write_document

_SHOWN = 80
"""Characters of a value in an error."""


class CellStore:
    """The folder `cells/` of a cross-play."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`/cells; it is made with the first cell."""
        self._folder = folder / "cells"

    def find(self, plan: Plan) -> dict[str, EvaluationResult]:
        """Return the cells that were played already, by name.

        Raises:
            SettingsError: There is one of other players, deals or settings, or a file that is no cell.
        """
        found = {cell.name: self._find(cell) for cell in plan.cells}
        return {name: result for name, result in found.items() if result is not None}

    def play(
        self,
        plan: Plan,
        cells: dict[str, EvaluationResult],
        *,
        served: Served | None,
        begin: Callable[[PlannedCell], None],
        progress: Callable[[int], None],
    ) -> None:
        """Play what is missing, cell by cell; each is in the folder and in `cells` as soon as it is finished.

        Args:
            plan: What to play.
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
                plan.setup,
                plan.num_deals,
                suite=plan.suite,
                served=served if cell.line_up.needs_server else None,
                rotate=not plan.is_team,
                label=cell.label,
                ledger=self._ledger(cell),
                progress=progress,
                clear=False,
            )
            write_document(self._path(cell), {"key": cell.key, **result_to_json(result)})
            self._ledger(cell).unlink(missing_ok=True)
            cells[cell.name] = result

    def _find(self, cell: PlannedCell) -> EvaluationResult | None:
        path = self._path(cell)
        if not path.exists():
            return None
        result = read_result(path)
        found, wanted = json.loads(path.read_bytes()).get("key"), json.loads(json.dumps(cell.key))
        if not isinstance(found, dict):
            raise SettingsError(f"{path}: not a cell of a cross-play (no key); move it away.")
        other = [
            f"{name}: there {str(found.get(name))[:_SHOWN]}, here {str(wanted.get(name))[:_SHOWN]}"
            for name in sorted({*found, *wanted})
            if found.get(name) != wanted.get(name)
        ]
        if other:
            raise SettingsError(
                f"{path}: was played otherwise ({'; '.join(other)}). Give the entries in the order and with the "
                "options of that folder, or choose another --out."
            )
        if result.num_deals != wanted["deals"]:
            raise SettingsError(f"{path}: damaged ({result.num_deals} deals, says {wanted['deals']}); move it away.")
        # Left where the command was stopped between writing the cell and this.
        self._ledger(cell).unlink(missing_ok=True)
        return result

    def _path(self, cell: PlannedCell) -> Path:
        return self._folder / f"{cell.name}.json"

    def _ledger(self, cell: PlannedCell) -> Path:
        """The file in which an interrupted cell keeps its finished deals."""
        return self._folder / f"{cell.name}.part.jsonl"
