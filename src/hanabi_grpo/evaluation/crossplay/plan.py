"""What is crossed, and its played cells in a folder, one file each: every entry in seat 0 with every other."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import LineUp, parse_line_up, short_name
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_line_up, line_up_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result, result_to_json, write_document
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings.refs import CheckpointRef, Ref

MAX_ENTRIES = 64
_SHOWN = 80
"""Characters of a value in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row and column of the matrix.

    Example:
        Entry(label="seed 1", ref=parse_checkpoint("outputs/laptop-a/checkpoint-500"))
    """

    label: str
    ref: Ref
    """A run's folder stands here as its newest checkpoint, which may not change on the way."""

    @property
    def run(self) -> Path | None:
        """The run folder that a checkpoint belongs to; None: no checkpoint."""
        if isinstance(self.ref, CheckpointRef) and isinstance(self.ref.place, Path):
            return self.ref.place.resolve().parent
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCell:
    """One line-up that plays every deal."""

    name: str
    """Of its file: "<row>-<column>"."""
    label: str
    line_up: LineUp
    key: Mapping[str, Any]
    """Everything that its games depend on; a cell of another key is another piece of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole cross-play."""

    entries: tuple[Entry, ...]
    setup: Setup[Any]
    num_deals: int
    suite: str
    temperature: float | None
    """Of sampling; None: only scripts play."""
    seats: tuple[tuple[str, ...], ...]
    """Who an entry is, per entry and seat; see `refs`."""
    cells: tuple[PlannedCell, ...]
    """N x N, row by row."""

    @property
    def is_team(self) -> bool:
        """Whether a game has one score for all players; if not, a cell changes seats and has the row's return."""
        return self.setup.spec.has_common_score


def parse_entries(texts: Sequence[str], setup: Setup[Any]) -> tuple[Entry, ...]:
    """Read entries: a word each, or name=word. Checkpoints that share a label get their whole path.

    Raises:
        SettingsError: Fewer than two entries, an unknown word, a list of words, or a name or word that is there twice.
    """
    if not 2 <= len(texts) <= MAX_ENTRIES:
        raise SettingsError(
            f"{len(texts)} entries: cross-play needs 2 to {MAX_ENTRIES}, e.g. hanabi-grpo cross-play iggi piers served"
        )
    parsed = [_parse(text, setup) for text in texts]
    labels = [label or short_name(str(ref)) for label, ref in parsed]
    entries = tuple(
        Entry(label=short if label or labels.count(short) == 1 else str(ref), ref=ref)
        for (label, ref), short in zip(parsed, labels, strict=True)
    )
    for what, values, step in (
        ("name", [entry.label for entry in entries], "name them apart: NAME=ENTRY"),
        ("entry", [str(entry.ref) for entry in entries], "give each entry once"),
    ):
        if twice := [value for value in values if values.count(value) > 1]:
            raise SettingsError(f"{what} {twice[0]!r} is there {len(twice)} times; {step}.")
    return entries


def _parse(text: str, setup: Setup[Any]) -> tuple[str, Ref]:
    """Return the name that a person gave, "" for none, and the reference."""
    label, equals, word = (part.strip() for part in text.partition("="))
    # A folder may have "=" in its name.
    if not equals or "/" in label or Path(text.strip()).is_dir():
        label, word = "", text.strip()
    elif not label.isprintable() or not label:
        raise SettingsError(f"entry {text!r}: a name has visible characters.")
    if "," in word:
        raise SettingsError(
            f"entry {text!r}: an entry is one word; cross-play makes the pairs itself. For a list of different players "
            "there is hanabi-grpo evaluate."
        )
    ref = parse_line_up(word, setup.spec.num_players, env=setup.env).refs[0]
    if isinstance(ref, CheckpointRef) and isinstance(ref.place, Path):
        ref = replace(ref, place=newest_checkpoint(ref.place))
    return label, ref


def make_plan(
    entries: Sequence[Entry], setup: Setup[Any], num_deals: int, *, suite: str, served: Served | None
) -> Plan:
    """Look up who everybody is, and list the cells: the row's entry in seat 0, the column's in every other seat.

    Deals 0 to `num_deals - 1` are played in every cell. `served` is needed unless every entry is a script.

    Raises:
        SettingsError: Two entries are the same players, or a checkpoint cannot be used.
        ServerError: The server lacks an adapter.
    """
    cells = []
    for i, row in enumerate(entries):
        for j, column in enumerate(entries):
            refs = (row.ref, *[column.ref] * (setup.spec.num_players - 1))
            line_up = LineUp(text=",".join(map(str, refs)), refs=refs)
            key = line_up_key(line_up, setup, suite=suite, served=served, rotate=not setup.spec.has_common_score)
            # The seats say who plays; a checkpoint's folder may have been moved.
            key = {name: value for name, value in key.items() if name != "line_up"} | {"deals": num_deals}
            label = row.label if i == j else f"{row.label} × {column.label}"
            cells.append(PlannedCell(name=f"{i}-{j}", label=label, line_up=line_up, key=key))
    seats = tuple(tuple(cell.key["seats"][0]) for cell in cells[:: len(entries) + 1])
    for number, one in enumerate(seats):
        if one in seats[:number]:
            raise SettingsError(
                f"{entries[seats.index(one)].label} and {entries[number].label} are the same players "
                f"({', '.join(dict.fromkeys(one))}); give each once."
            )
    sampled = any(cell.line_up.needs_server for cell in cells)
    return Plan(
        entries=tuple(entries),
        setup=setup,
        num_deals=num_deals,
        suite=suite,
        temperature=served.temperature if served and sampled else None,
        seats=seats,
        cells=tuple(cells),
    )


def find_cells(plan: Plan, folder: Path) -> dict[str, EvaluationResult]:
    """Return the cells that were played already, by name.

    Raises:
        SettingsError: There is one of other players, deals or settings, or a file that is no cell.
    """
    found = {}
    for cell in plan.cells:
        path, ledger = _files(folder, cell)
        if not path.exists():
            continue
        found[cell.name] = read_result(path)
        key, wanted = json.loads(path.read_bytes()).get("key"), json.loads(json.dumps(cell.key))
        if not isinstance(key, dict):
            raise SettingsError(f"{path}: not a cell of a cross-play (no key); move it away.")
        other = [
            f"{name}: there {str(key.get(name))[:_SHOWN]}, here {str(wanted.get(name))[:_SHOWN]}"
            for name in sorted({*key, *wanted})
            if key.get(name) != wanted.get(name)
        ]
        if other:
            raise SettingsError(
                f"{path}: was played otherwise ({'; '.join(other)}). Give the entries in the order and with the "
                "options of that folder, or choose another --out."
            )
        if found[cell.name].num_deals != plan.num_deals:
            raise SettingsError(f"{path}: damaged (its scores are not of {plan.num_deals} deals); move it away.")
        # Left where the command was stopped between writing the cell and this.
        ledger.unlink(missing_ok=True)
    return found


def play_cells(
    plan: Plan,
    folder: Path,
    cells: dict[str, EvaluationResult],
    *,
    served: Served | None,
    begin: Callable[[PlannedCell], None],
    progress: Callable[[int], None],
) -> None:
    """Play what is not in `cells`, by name; each is there and in the folder as soon as it is finished.

    `begin` receives each cell before its first deal, `progress` the number of its deals that are done.

    Raises:
        ServerError: The server failed, or dropped a game.
        SettingsError: The rest of an interrupted cell is of other work, or the disk is full.
    """
    for cell in plan.cells:
        if cell.name in cells:
            continue
        begin(cell)
        path, ledger = _files(folder, cell)
        result = evaluate_line_up(
            cell.line_up,
            plan.setup,
            plan.num_deals,
            suite=plan.suite,
            served=served if cell.line_up.needs_server else None,
            rotate=not plan.is_team,
            label=cell.label,
            ledger=ledger,
            progress=progress,
        )
        write_document(path, {"key": cell.key, **result_to_json(result)})
        ledger.unlink(missing_ok=True)
        cells[cell.name] = result


def _files(folder: Path, cell: PlannedCell) -> tuple[Path, Path]:
    """Return where a cell is, and where an interrupted one keeps its finished deals."""
    return folder / "cells" / f"{cell.name}.json", folder / "cells" / f"{cell.name}.part.jsonl"
