"""Plan of a cross-play: every entry in seat 0 with every other one.

The finished tasks of a cell are a ledger in the folder's `cells/`, named by what is played.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import Lineup, parse_lineup, short_name
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup, lineup_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.ledger import key_digest
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings.refs import CheckpointRef, Ref, ScriptRef
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter

MIN_ENTRIES = 2
MAX_ENTRIES = 64
MIN_PLAYERS = 2
"""Least number of players of a game in which policies can be paired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row and column of the matrix.

    Example:
        Entry(label="seed 1", ref=parse_checkpoint("outputs/laptop-a/checkpoint-500"))
    """

    label: str
    """Name in tables."""
    ref: Ref
    """The policy. A run's folder is resolved to its newest checkpoint once, so that it does not
    change while the cells are played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole cross-play."""

    entries: tuple[Entry, ...]
    setup: Setup[Any]
    """Environment and configuration."""
    num_tasks: int
    """Tasks of every cell."""
    suite: str
    """Suite of the tasks."""
    temperature: float | None
    """Sampling temperature; None: only scripts play."""
    token_filter: TokenFilter = ALL_TOKENS
    """Which tokens models may draw."""
    seats: tuple[tuple[str, ...], ...]
    """Per entry, the policy of each seat of its self-play team; see `settings.refs`."""
    cells: Mapping[str, Lineup]
    """Seat assignment of a cell by its name "<row>-<column>": N x N, row by row."""

    @property
    def is_team(self) -> bool:
        """Whether a game has one score for all players.

        If not, a cell is played in every seat order, and its score is the row's return.
        """
        return self.setup.spec.has_common_score


def refuse_one_player(setup: Setup[Any]) -> None:
    """Refuse a game in which policies cannot be paired.

    Args:
        setup: Environment and configuration.

    Raises:
        SettingsError: The game has one player.
    """
    if setup.spec.num_players < MIN_PLAYERS:
        raise SettingsError(
            f"{setup.spec.preset} has one player, so there is nobody to pair; use hanabi-grpo "
            "evaluate A B, which compares policies on the same tasks."
        )


def parse_entries(texts: Sequence[str], setup: Setup[Any]) -> tuple[Entry, ...]:
    """Read entries: a policy spec each, or NAME=SPEC.

    Checkpoints that share a label get their whole path instead.

    Raises:
        SettingsError: The game has one player, there are fewer than two entries, a spec is unknown
            or a list of specs, or a name or spec is given twice.
    """
    refuse_one_player(setup)
    if not MIN_ENTRIES <= len(texts) <= MAX_ENTRIES:
        raise SettingsError(
            f"{len(texts)} entries: cross-play needs {MIN_ENTRIES} to {MAX_ENTRIES}, "
            "e.g. hanabi-grpo cross-play iggi piers served"
        )
    return name_entries([parse_entry(text, setup) for text in texts])


def name_entries(parsed: Sequence[tuple[str, Ref]]) -> tuple[Entry, ...]:
    """Return entries with names that tell them apart.

    Args:
        parsed: The name that was given, "" for none, and the policy of each.

    Raises:
        SettingsError: A name or policy is given twice.
    """
    short_labels = [label or short_name(str(ref)) for label, ref in parsed]
    entries = []
    for (label, ref), short_label in zip(parsed, short_labels, strict=True):
        is_unique = bool(label) or short_labels.count(short_label) == 1
        entry_label = short_label if is_unique else str(ref)
        entries.append(Entry(label=entry_label, ref=ref))
    labels = [entry.label for entry in entries]
    specs = [str(entry.ref) for entry in entries]
    _refuse_twice("name", labels, "give them different names: NAME=ENTRY")
    _refuse_twice("entry", specs, "give each entry once")
    return tuple(entries)


def _refuse_twice(what: str, values: Sequence[str], next_step: str) -> None:
    """Raise a SettingsError for the first value that appears more than once."""
    for value in values:
        count = values.count(value)
        if count > 1:
            raise SettingsError(f"{what} {value!r} is given {count} times; {next_step}.")


def parse_entry(text: str, setup: Setup[Any]) -> tuple[str, Ref]:
    """Return the name that was given, "" for none, and the reference.

    Raises:
        SettingsError: The policy spec is unknown, or a list of specs, or a script that cannot play
            this game.
    """
    label, equals, spec = text.partition("=")
    label = label.strip()
    spec = spec.strip()
    # A folder may have "=" in its name.
    is_folder = "/" in label or Path(text.strip()).is_dir()
    if not equals or is_folder:
        label = ""
        spec = text.strip()
    elif not label.isprintable() or not label:
        raise SettingsError(f"entry {text!r}: a name needs visible characters.")
    if "," in spec:
        raise SettingsError(
            f"entry {text!r}: an entry is one policy; cross-play forms the pairs itself. To play a "
            "list of different players, use hanabi-grpo evaluate."
        )
    lineup = parse_lineup(spec, setup.spec.num_players, env=setup.env)
    ref = lineup.refs[0]
    if isinstance(ref, ScriptRef):
        check_script(setup, ref.name)
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
    resolve: bool = True,
) -> Plan:
    """Resolve every entry and list the cells.

    In a cell the row's entry has seat 0, the column's every other seat.

    Args:
        entries: Rows and columns of the matrix.
        setup: Environment and configuration.
        num_tasks: Tasks 0 to `num_tasks - 1` are played in every cell.
        suite: Suite of the tasks.
        served: How models are played; needed unless every entry is a script.
        resolve: Whether to look up now what each entry stands for on the server. If False, as for
            servers that are started one after another, entries stay as typed.

    Raises:
        SettingsError: Two entries are the same players, or a checkpoint cannot be used.
        ServerError: The server lacks an adapter.
    """
    num_others = setup.spec.num_players - 1
    cells = {}
    for i, row in enumerate(entries):
        for j, column in enumerate(entries):
            refs = (row.ref, *[column.ref] * num_others)
            text = ",".join(map(str, refs))
            cells[f"{i}-{j}"] = Lineup(text=text, refs=refs)
    seats = []
    needs_server = False
    for i in range(len(entries)):
        team = cells[f"{i}-{i}"]
        if not resolve:
            seats.append(team.specs)
            continue
        key = lineup_key(team, setup, suite=suite, served=served)
        seats.append(tuple(key["seats"][0]))
        needs_server = needs_server or team.needs_server
    _refuse_same_players(entries, seats)
    return Plan(
        entries=tuple(entries),
        setup=setup,
        num_tasks=num_tasks,
        suite=suite,
        temperature=served.temperature if served and needs_server else None,
        token_filter=served.token_filter if served and needs_server else ALL_TOKENS,
        seats=tuple(seats),
        cells=cells,
    )


def with_sampling(plan: Plan, served: Served | None) -> Plan:
    """Return a plan whose models sample as on a server; without a server, the same plan."""
    if served is None:
        return plan
    return replace(plan, temperature=served.temperature, token_filter=served.token_filter)


def _refuse_same_players(entries: Sequence[Entry], seats: Sequence[tuple[str, ...]]) -> None:
    """Raise a SettingsError where two entries have the same seats."""
    for number, entry_seats in enumerate(seats):
        first = seats.index(entry_seats)
        if first < number:
            names = ", ".join(dict.fromkeys(entry_seats))
            raise SettingsError(
                f"{entries[first].label} and {entries[number].label} are the same players "
                f"({names}); give each once."
            )


def play_cells(
    plan: Plan,
    folder: Path,
    cells: dict[str, EvaluationResult],
    *,
    served: Served | None,
    begin: Callable[[Lineup], None],
    progress: Callable[[int], None],
    names: Collection[str] | None = None,
) -> None:
    """Play every cell; tasks that an earlier call finished are not played again.

    Args:
        plan: The cross-play.
        folder: Its folder, for ledgers.
        cells: Receives each result by the cell's name, as soon as the cell is finished.
        served: How models are played; needed unless every entry is a script.
        begin: Receives each cell before its first task.
        progress: Receives the number of the cell's tasks that are done.
        names: Names of the cells that are played now; None: all of them.

    Raises:
        ServerError: The server failed, or dropped a game.
        SettingsError: A cell's ledger is damaged or in use, or the disk is full.
    """
    rotate = not plan.is_team
    for name, lineup in plan.cells.items():
        if names is not None and name not in names:
            continue
        begin(lineup)
        needed = served if lineup.needs_server else None
        key = lineup_key(lineup, plan.setup, suite=plan.suite, served=needed, rotate=rotate)
        cells[name] = evaluate_lineup(
            lineup,
            plan.setup,
            plan.num_tasks,
            suite=plan.suite,
            served=needed,
            rotate=rotate,
            # Named by what is played: entries may change their order, and others may join them.
            ledger=folder / "cells" / f"{key_digest(key)}.jsonl",
            progress=progress,
        )
