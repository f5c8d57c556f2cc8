"""What is crossed: every entry in seat 0 with every other. A cell's tasks are a ledger in the
folder's `cells/`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import Lineup, parse_lineup, short_name
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup, lineup_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings.refs import CheckpointRef, Ref

MAX_ENTRIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row and column of the matrix.

    Example:
        Entry(label="seed 1", ref=parse_checkpoint("outputs/laptop-a/checkpoint-500"))
    """

    label: str
    ref: Ref
    """A run's folder stands here as its newest checkpoint, which may not change on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole cross-play."""

    entries: tuple[Entry, ...]
    setup: Setup[Any]
    num_tasks: int
    suite: str
    temperature: float | None
    """Of sampling; None: only scripts play."""
    seats: tuple[tuple[str, ...], ...]
    """Who an entry is, per entry and seat; see `refs`."""
    cells: Mapping[str, Lineup]
    """Who plays every task of a cell, by its name "<row>-<column>": N x N, row by row."""

    @property
    def is_team(self) -> bool:
        """Whether a game has one score for all players; if not, a cell changes seats and has the
        row's return.
        """
        return self.setup.spec.has_common_score


def parse_entries(texts: Sequence[str], setup: Setup[Any]) -> tuple[Entry, ...]:
    """Read entries: a word each, or name=word. Checkpoints that share a label get their whole path.

    Raises: SettingsError: Fewer than two entries, an unknown word, a list of words, or a name or
        word that is there twice.
    """
    if not 2 <= len(texts) <= MAX_ENTRIES:
        raise SettingsError(
            f"{len(texts)} entries: cross-play needs 2 to {MAX_ENTRIES}, e.g. hanabi-grpo "
            "cross-play iggi piers served"
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
            f"entry {text!r}: an entry is one word; cross-play makes the pairs itself. For a list "
            "of different players "
            "there is hanabi-grpo evaluate."
        )
    ref = parse_lineup(word, setup.spec.num_players, env=setup.env).refs[0]
    if isinstance(ref, CheckpointRef) and isinstance(ref.place, Path):
        ref = replace(ref, place=newest_checkpoint(ref.place))
    return label, ref


def make_plan(
    entries: Sequence[Entry],
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str,
    served: Served | None,
) -> Plan:
    """Look up who everybody is, and list the cells: the row's entry in seat 0, the column's in
    every other seat.

    Tasks 0 to `num_tasks - 1` are played in every cell. `served` is needed unless every entry is a
    script.

    Raises:
        SettingsError: Two entries are the same players, or a checkpoint cannot be used.
        ServerError: The server lacks an adapter.
    """
    others, refs = setup.spec.num_players - 1, [entry.ref for entry in entries]
    pairs = {
        f"{i}-{j}": (row, *[other] * others)
        for i, row in enumerate(refs)
        for j, other in enumerate(refs)
    }
    cells = {name: Lineup(text=",".join(map(str, team)), refs=team) for name, team in pairs.items()}
    teams = [cells[f"{i}-{i}"] for i in range(len(entries))]
    seats = tuple(
        tuple(lineup_key(team, setup, suite=suite, served=served)["seats"][0]) for team in teams
    )
    for number, one in enumerate(seats):
        if one in seats[:number]:
            raise SettingsError(
                f"{entries[seats.index(one)].label} and {entries[number].label} are the same "
                "players "
                f"({', '.join(dict.fromkeys(one))}); give each once."
            )
    sampled = any(team.needs_server for team in teams)
    return Plan(
        entries=tuple(entries),
        setup=setup,
        num_tasks=num_tasks,
        suite=suite,
        temperature=served.temperature if served and sampled else None,
        seats=seats,
        cells=cells,
    )


def play_cells(
    plan: Plan,
    folder: Path,
    cells: dict[str, EvaluationResult],
    *,
    served: Served | None,
    begin: Callable[[Lineup], None],
    progress: Callable[[int], None],
) -> None:
    """Play every cell and put it into `cells` by name; tasks that an earlier call finished are not
    played again.

    `begin` receives each cell before its first task, `progress` the number of its tasks that are
    done.

    Raises:
        ServerError: The server failed, or dropped a game.
        SettingsError: The folder holds a cell of other players or settings, or the disk is full.
    """
    for name, lineup in plan.cells.items():
        begin(lineup)
        cells[name] = evaluate_lineup(
            lineup,
            plan.setup,
            plan.num_tasks,
            suite=plan.suite,
            served=served if lineup.needs_server else None,
            rotate=not plan.is_team,
            ledger=folder / "cells" / f"{name}.jsonl",
            progress=progress,
        )
