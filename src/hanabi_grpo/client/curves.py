"""What a run is validated on while it trains: games and lineups, with one curve for each pair.

By default there is one curve, the run's own players in the training games. With HANABI_EVAL_DATASET
each different game of its rows replaces those, and each lineup of HANABI_EVAL_LINEUPS plays each of
them. Names of curves: `training`, `kuhn` (the preset of a row), `served,minimax` (a lineup in the
training games), `kuhn:served,minimax`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import Lineup, ReadCheckpoints, SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError, did_you_mean
from hanabi_grpo.rollout.dataset_rows import VALIDATION_SUITE, DatasetRow, TaskRow
from hanabi_grpo.rollout.datasets import (
    played_setups,
    setup_names,
    training_rows,
    validation_rows,
)
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.runs.validation import TRAINING_CURVE
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import AdapterRef, CheckpointRef, Place, Ref, Role
from hanabi_grpo.tracking.checkpoints import local_folder
from hanabi_grpo.tracking.used_checkpoints import recorded_checkpoints

_BETWEEN_LINEUPS = ";"
_BEFORE_LINEUP = ":"
"""Separates game and lineup in a curve's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One thing that versions of a run are measured on."""

    name: str
    number: int
    """Position among the run's curves."""
    chooses: bool
    """Whether it chooses the best version."""
    setups: tuple[Setup[Any], ...]
    tasks: tuple[TaskRow, ...]
    """The same at every validation."""
    lineup: Lineup

    @property
    def has_opponents(self) -> bool:
        """Whether anyone other than the run's own players has a seat."""
        return any(ref is not Role.SERVED for ref in self.lineup.refs)


def validation_curves(settings: Settings) -> tuple[Curve, ...]:
    """Return a run's curves, the one that chooses first; without HANABI_EVAL_STEPS none.

    Raises:
        SettingsError: A row or a lineup cannot be played, or no curve has the name of
            HANABI_EVAL_BEST.
    """
    if not settings.eval_steps:
        return ()
    curves: list[Curve] = []
    for game, setups, tasks in _games(settings):
        for text in _lineup_texts(settings):
            lineup = _read_lineup(text, setups)
            is_own = all(ref is Role.SERVED for ref in lineup.refs)
            if is_own:
                name = game
            elif game == TRAINING_CURVE:
                name = lineup.label
            else:
                name = f"{game}{_BEFORE_LINEUP}{lineup.label}"
            curves.append(
                Curve(
                    name=name,
                    number=len(curves),
                    chooses=False,
                    setups=tuple(setups),
                    tasks=tuple(tasks),
                    lineup=lineup,
                )
            )
    names = [curve.name for curve in curves]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(
                f"HANABI_EVAL_LINEUPS={settings.eval_lineups}: the curve {name!r} is listed "
                f"{names.count(name)} times; list each lineup once."
            )
    chosen = names[0] if settings.eval_best is None else settings.eval_best
    if chosen not in names:
        raise SettingsError(
            f"HANABI_EVAL_BEST={chosen}: no such curve; {did_you_mean(chosen, names)}the curves "
            f"are {', '.join(map(repr, names))}. Unset it for the first."
        )
    marked = [replace(curve, chooses=curve.name == chosen) for curve in curves]
    return tuple(sorted(marked, key=lambda curve: not curve.chooses))


def validation_setups(settings: Settings) -> list[Setup[Any]]:
    """Return the games of HANABI_EVAL_DATASET, each once; without HANABI_EVAL_STEPS none."""
    return played_setups(validation_rows(settings)) if settings.eval_steps else []


def curves_line(settings: Settings, curves: Sequence[Curve]) -> str:
    """Return one line on what is validated and which curve chooses the best version.

    Example:
        "validation: every 50 steps, training (200 tasks), kuhn (200 tasks); training chooses the
        best version"
    """
    parts = [f"{curve.name} ({len(curve.tasks)} tasks)" for curve in curves]
    return (
        f"validation: every {settings.eval_steps} steps, {', '.join(parts)}; "
        f"{curves[0].name} chooses the best version"
    )


def opponent_places(curves: Sequence[Curve]) -> list[Place]:
    """Return the places of the checkpoints that have a seat in the lineups of a run's curves."""
    places = []
    for curve in curves:
        for ref in curve.lineup.refs:
            if isinstance(ref, CheckpointRef):
                places.append(ref.place)
    return places


class CurveSeats:
    """Seats the lineups of a run's curves on one server."""

    def __init__(self, settings: Settings, client: RolloutClient, curves: Sequence[Curve]) -> None:
        """Store the curves; `load` finds their opponents.

        Args:
            settings: The run's settings.
            client: Client of the server.
            curves: See `validation_curves`.
        """
        self._settings = settings
        self._client = client
        self._curves = curves
        self._checkpoints: dict[Ref, Ref] = {}
        """The folder of each checkpoint in a lineup, as found at the start."""
        self._read: ReadCheckpoints = {}
        """The content of these folders: another run may remove one in the meantime."""

    def load(self) -> None:
        """Find every opponent, so that problems show at the start, and remember which it was.

        A run or a remote checkpoint in a lineup may have a newer version later; a curve keeps the
        same opponents throughout, also after a resume (`tracking.used_checkpoints`).

        Raises:
            SettingsError: A checkpoint is missing or does not fit the server, or the server knows
                no such URL.
            ServerError: The server refuses an adapter.
        """
        resolver = SeatResolver(self._client, self._settings, checkpoints=self._read)
        try:
            used = recorded_checkpoints(self._settings.output_dir)
            for curve in self._curves:
                for ref in curve.lineup.refs:
                    if isinstance(ref, CheckpointRef) and ref not in self._checkpoints:
                        known = used.get(str(ref.place))
                        place = local_folder(ref.place) if known is None else Path(known.folder)
                        folder = newest_checkpoint(place)
                        self._checkpoints[ref] = replace(ref, place=folder)
                for order in curve.lineup.orders():
                    self._seats(order, ("",) * len(order), resolver)
        except SettingsError as error:
            raise SettingsError(
                f"HANABI_EVAL_LINEUPS={self._settings.eval_lineups}: {error}"
            ) from error

    def requests(self, curve: Curve, own: Sequence[str]) -> list[dict[str, Any]]:
        """Return the tasks to request: each task in each seat order of the curve's lineup.

        Args:
            curve: One of the run's curves.
            own: The run's own adapter of each seat, e.g. ("player_0@7", "player_1@7").
        """
        if not curve.has_opponents:
            return [task.request() for task in curve.tasks]
        # A new resolver each time: the server may have been restarted, or have dropped an adapter.
        resolver = SeatResolver(self._client, self._settings, checkpoints=self._read)
        requests = []
        for order in curve.lineup.orders():
            seats = self._seats(order, own, resolver)
            requests += [task.request(seats) for task in curve.tasks]
        return requests

    def _seats(
        self, refs: Sequence[Ref], own: Sequence[str], resolver: SeatResolver
    ) -> tuple[str, ...]:
        seats = []
        for player, ref in enumerate(refs):
            if ref is Role.SERVED:
                seats.append(own[player])
            else:
                seats.append(resolver.seat(self._checkpoints.get(ref, ref), player))
        return tuple(seats)


def _games(settings: Settings) -> list[tuple[str, list[Setup[Any]], list[TaskRow]]]:
    """Return name, setups and tasks of each game, or group of games, to validate on."""
    rows = validation_rows(settings)
    if not rows:
        setups = played_setups(training_rows(settings))
        return [(TRAINING_CURVE, setups, _training_tasks(setups, settings.eval_tasks))]
    setups = played_setups(rows)
    games = []
    for name, setup in zip(setup_names(setups), setups, strict=True):
        games.append((name, [setup], _tasks_of(setup, rows)))
    return games


def _training_tasks(setups: Sequence[Setup[Any]], num_tasks: int) -> list[TaskRow]:
    """Return tasks of a suite that nothing else plays, the same number for each game."""
    per_setup = math.ceil(num_tasks / len(setups))
    tasks: list[TaskRow] = []
    for setup in setups:
        row = setup.row()
        for seed in range(per_setup):
            tasks.append(
                TaskRow(
                    messages=(),
                    env=row["env"],
                    env_config=row["env_config"],
                    suite=VALIDATION_SUITE,
                    seed=seed,
                    number=len(tasks),
                )
            )
    return tasks


def _tasks_of(setup: Setup[Any], rows: Sequence[DatasetRow]) -> list[TaskRow]:
    """Return the tasks of a game, each once."""
    tasks: dict[tuple[str, int], TaskRow] = {}
    for row in rows:
        if row.setup != setup:
            continue
        for seed in row.seeds or ():
            key = (row.suite, seed)
            if key not in tasks:
                tasks[key] = row.task(len(tasks), seed)
    return list(tasks.values())


def _lineup_texts(settings: Settings) -> list[str]:
    texts = [text.strip() for text in settings.eval_lineups.split(_BETWEEN_LINEUPS)]
    return [text for text in texts if text] or [Role.SERVED.value]


def _read_lineup(text: str, setups: Sequence[Setup[Any]]) -> Lineup:
    """Read a lineup; every game that it plays must know its scripts."""
    given = f"HANABI_EVAL_LINEUPS: {text!r}"
    lineup = None
    for setup in setups:
        try:
            lineup = parse_lineup(
                text,
                setup.spec.num_players,
                env=setup.env,
                scripts=setup.environment.policies,
                download=False,
            )
        except SettingsError as error:
            raise SettingsError(f"{given} in {setup.spec.preset}: {error}") from error
    assert lineup is not None, "a run plays at least one game"
    if any(isinstance(ref, AdapterRef) for ref in lineup.refs):
        raise SettingsError(
            f"{given}: the run's own players are served, each in its seat; other seats may be "
            "base, scripts, url:NAME or folders."
        )
    if Role.SERVED not in lineup.refs:
        raise SettingsError(
            f"{given}: none of the run's players has a seat, so every version would score the "
            f"same; use served for a seat, e.g. served,{text.split(',')[0]}."
        )
    return lineup
