"""Entries with several base models: the servers that play every cell, one server after another.

A server holds at most as many base models as a game has seats, so a pair of runs with different
base models needs a server with both. Cells are grouped so that few servers are started.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.evaluation.crossplay.plan import Entry, Plan
from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.settings.base_models import model_entries
from hanabi_grpo.settings.refs import CheckpointRef, ScriptRef
from hanabi_grpo.types import player_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """Cells that one server can play."""

    models: tuple[str, ...]
    """Base models of the server."""
    cells: tuple[str, ...]
    """Names of the cells."""

    @property
    def model(self) -> str:
        """The value of MODEL, e.g. "player_0=A,player_1=B"."""
        if len(self.models) == 1:
            return self.models[0]
        named = [f"{player_name(seat)}={model}" for seat, model in enumerate(self.models[:-1])]
        return ",".join([*named, self.models[-1]])


def base_models_of(entry: Entry, model: str) -> tuple[str, ...]:
    """Return the base models that an entry plays on; none for a script.

    Args:
        entry: The entry.
        model: MODEL of this command, for entries whose checkpoint names no base model.
    """
    if isinstance(entry.ref, ScriptRef):
        return ()
    recorded: object = None
    if isinstance(entry.ref, CheckpointRef) and isinstance(entry.ref.place, Path):
        try:
            recorded = read_manifest(entry.ref.place).facts.get("model")
        except HanabiGrpoError:
            recorded = None
    named = recorded if isinstance(recorded, str) and recorded else model
    try:
        return tuple(dict.fromkeys(model_entries(named).values()))
    except ValueError:
        return (named,)


def group_cells(plan: Plan, model: str) -> list[ServerGroup]:
    """Return the servers that are needed to play every cell, and the cells of each.

    Args:
        plan: The cross-play.
        model: MODEL of this command.

    Raises:
        SettingsError: A cell has more base models than the game has seats.
    """
    models = [base_models_of(entry, model) for entry in plan.entries]
    needed: dict[str, tuple[str, ...]] = {}
    for i, row in enumerate(models):
        for j, column in enumerate(models):
            needed[f"{i}-{j}"] = tuple(dict.fromkeys([*row, *column]))
    most = plan.setup.spec.num_players
    groups: list[tuple[tuple[str, ...], list[str]]] = []
    for name in sorted(needed, key=lambda cell: -len(needed[cell])):
        if len(needed[name]) > most:
            raise SettingsError(
                f"a pair of entries needs {len(needed[name])} base models "
                f"({', '.join(needed[name])}); a server of a game with {most} seats holds at "
                f"most {most}. Enter one adapter of each run (RUN:player_0), or give models by URL "
                "(HANABI_PARTNER_URLS)."
            )
        _add(groups, name, needed[name])
    return [ServerGroup(models=names, cells=tuple(cells)) for names, cells in groups]


def _add(groups: list[tuple[tuple[str, ...], list[str]]], cell: str, models: Sequence[str]) -> None:
    """Add a cell to the first group that has its base models, or to a new one."""
    for names, cells in groups:
        if set(models) <= set(names):
            cells.append(cell)
            return
    groups.append((tuple(models), [cell]))
