"""Evaluation of one or more lineups on the same tasks, with reference scripts.

The results are saved with the runs whose adapters play.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.client.lineups import Lineup, parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import SUITE, evaluate_lineup, lineup_key
from hanabi_grpo.evaluation.frames import result_frame
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import (
    evaluation_document,
    evaluation_sheets,
    reference_names,
    reference_results,
)
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document
from hanabi_grpo.runs.ledger import key_digest
from hanabi_grpo.runs.run_folder import EVALUATIONS, OUTPUTS
from hanabi_grpo.settings.refs import Ref, Role, ScriptRef

if TYPE_CHECKING:
    import pandas

_MAX_STEM = 60
"""Largest number of characters of a label in the file name of a saved result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """One lineup with its name in tables."""

    spec: str
    """The lineup as typed."""
    lineup: Lineup
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of lineups on the same held-out tasks.

    Example:
        evaluation = hanabi_grpo.evaluate("iggi", env=env, tasks=100)
        evaluation.results[0].mean == 2.31
    """

    results: tuple[EvaluationResult, ...]
    """The lineups, in the order in which they were given."""
    references: tuple[EvaluationResult, ...]
    """Scripts that played the same tasks."""
    _teams: tuple[Team, ...] = field(repr=False)
    _digests: tuple[str, ...] = field(repr=False)
    """Per lineup, the digest of everything that its result depends on."""
    _ledgers: tuple[Path, ...] = field(repr=False)
    """Per lineup, the file of its finished tasks, with which an interrupted evaluation resumes."""
    _out: Path | None = field(repr=False)
    """The user's output file, if any."""

    def document(self) -> dict[str, Any]:
        """Return the evaluation as `hanabi-grpo evaluate --json` prints it."""
        return evaluation_document(self.results, self.references)

    def kept_document(self) -> dict[str, Any]:
        """Return the evaluation as it is saved.

        A single lineup is saved in the form that `report` and other commands read.
        """
        documents = self._documents()
        return documents[0] if len(documents) == 1 else self.document()

    def sheets(self) -> list[Sheet]:
        """Return the tables."""
        return evaluation_sheets(self.results, self.references)

    def frame(self) -> "pandas.DataFrame":
        """Return a row for each lineup and script, with the mean, its error and the figures."""
        return result_frame([*self.results, *self.references])

    def keep_with_runs(self, served: Served | None, say: Callable[[str], None]) -> bool:
        """Save each result with its runs on this machine, and delete the ledgers.

        A run's page, its model card and comparisons of runs read the result there. The folder of
        the ledgers is removed too if it is then empty.

        Args:
            served: How models were played.
            say: Receives what was saved, or why it was not.

        Returns:
            Whether one of the results is saved with a run.
        """
        lineups = [team.lineup for team in self._teams]
        written = self._out if len(lineups) == 1 else None
        is_kept = False
        for lineup, document, digest in zip(lineups, self._documents(), self._digests, strict=True):
            runs = _runs_of(lineup, lineups, served) if served else []
            is_kept |= _keep_with_runs(runs, document, digest, written, say)
        for ledger in self._ledgers:
            ledger.unlink(missing_ok=True)
            if self._out is None:
                _remove_if_empty(ledger.parent)
        return is_kept

    def _documents(self) -> list[dict[str, Any]]:
        """Return the document of each lineup, with the references, which become table rows."""
        references = [result_to_json(reference) for reference in self.references]
        documents = []
        for result in self.results:
            documents.append({**result_to_json(result), "references": references})
        return documents


def parse_lineups(
    specs: Sequence[str], game: Setup[Any], *, label: str | None = None, rotate: bool = True
) -> list[Team]:
    """Read the lineups of one evaluation.

    Args:
        specs: The lineups, see `parse_lineup`.
        game: What is played.
        label: Name in tables of the only lineup; None: short names that differ.
        rotate: Whether different players change seats.

    Raises:
        SettingsError: A lineup cannot be read or is given twice, possibly in another order of
            seats that is played anyway, one of its scripts does not play this game, or a label is
            given for several lineups.
    """
    for spec in specs:
        if list(specs).count(spec) > 1:
            raise SettingsError(f"lineup {spec!r}: is given twice; give each lineup once.")
    if label is not None and len(specs) > 1:
        raise SettingsError(
            f"--label {label!r}: names a single lineup, but {len(specs)} are given; leave it out."
        )
    scripts = game.environment.policies
    lineups = []
    for spec in specs:
        lineup = parse_lineup(spec, game.spec.num_players, env=game.env, scripts=scripts)
        for ref in lineup.refs:
            if isinstance(ref, ScriptRef):
                check_script(game, ref.name)
        lineups.append(lineup)
    _check_that_all_differ(lineups, rotate=rotate)
    names = distinct_labels(lineups) if label is None else [label]
    teams = []
    for spec, lineup, name in zip(specs, lineups, names, strict=True):
        teams.append(Team(spec=spec, lineup=lineup, name=name))
    return teams


def _check_that_all_differ(lineups: Sequence[Lineup], *, rotate: bool) -> None:
    """Raise SettingsError if two lineups would play the same games."""
    played: dict[frozenset[tuple[Ref, ...]], Lineup] = {}
    for lineup in lineups:
        orders = frozenset(lineup.orders(rotate=rotate))
        if orders not in played:
            played[orders] = lineup
            continue
        same = played[orders]
        reason = "they have the same players in the same seats"
        remedy = "leave one out"
        if lineup.refs != same.refs:
            reason = "a lineup is played in all rotations of its seats"
            remedy += ", or play only the given seats with --no-rotate (Python: rotate=False)"
        raise SettingsError(
            f"lineups {same.text!r} and {lineup.text!r} are the same games: {reason}; {remedy}."
        )


def _quiet(title: str, total: int, name: str) -> Callable[[int], None]:
    return lambda done: None


def evaluate_lineups(
    teams: Sequence[Team],
    game: Setup[Any],
    num_tasks: int,
    *,
    suite: str = SUITE,
    served: Served | None = None,
    rotate: bool = True,
    out: Path | None = None,
    folder: Path = OUTPUTS,
    begin: Callable[[str, int, str], Callable[[int], None]] = _quiet,
) -> Evaluation:
    """Play the tasks with each lineup and with the reference scripts.

    Args:
        teams: The lineups, at least one.
        game: What is played.
        num_tasks: Number of tasks, at least two.
        suite: A held-out suite.
        served: How models are played; needed unless scripts fill every seat.
        rotate: Whether different players change seats.
        out: Output file. Until the evaluation ends, finished tasks are kept in a ledger beside it.
        folder: Without `out`, the ledgers are kept in `evaluations/` of this folder.
        begin: Receives a title, the number of tasks and the lineup's name ("" for the scripts), and
            returns a function that receives the number of tasks done.

    Raises:
        SettingsError: As `evaluate_lineup`.
        ServerError: As `evaluate_lineup`.
    """
    results = []
    digests = []
    ledgers = []
    for number, team in enumerate(teams, start=1):
        key = lineup_key(team.lineup, game, suite=suite, served=served, rotate=rotate)
        digest = key_digest(key)
        if out is None:
            ledger = folder / EVALUATIONS / f"{game.spec.preset}-{digest}.part.jsonl"
        elif len(teams) > 1:
            ledger = out.with_suffix(f".{number}.part.jsonl")
        else:
            ledger = out.with_suffix(".part.jsonl")
        title = f"{team.name}: {num_tasks} tasks"
        num_orders = len(team.lineup.orders(rotate=rotate))
        if num_orders > 1:
            title += f" in {num_orders} seat orders"
        result = evaluate_lineup(
            team.lineup,
            game,
            num_tasks,
            suite=suite,
            served=served,
            rotate=rotate,
            label=team.name,
            ledger=ledger,
            progress=begin(title, num_tasks, team.name),
        )
        results.append(result)
        digests.append(digest)
        ledgers.append(ledger)
    # A script that is among the lineups is not played again.
    specs = [team.spec for team in teams]
    scripts = [name for name in reference_names(game) if name not in specs]
    references: list[EvaluationResult] = []
    if scripts:
        title = f"references: {', '.join(scripts)}"
        progress = begin(title, num_tasks * len(scripts), "")
        references = reference_results(results[0], scripts, setup=game, progress=progress)
    return Evaluation(
        results=tuple(results),
        references=tuple(references),
        _teams=tuple(teams),
        _digests=tuple(digests),
        _ledgers=tuple(ledgers),
        _out=out,
    )


def _remove_if_empty(folder: Path) -> None:
    """Remove an empty folder, and `outputs/` around it if nothing else is in it."""
    for candidate in (folder, folder.parent):
        is_ours = candidate.name == EVALUATIONS or candidate == OUTPUTS
        if not is_ours or not candidate.is_dir() or any(candidate.iterdir()):
            return
        candidate.rmdir()


def distinct_labels(teams: Sequence[Lineup]) -> list[str]:
    """Return short labels where they differ, and the whole lineup where two would be equal."""
    short = [team.label for team in teams]
    labels = []
    for team in teams:
        labels.append(team.label if short.count(team.label) == 1 else team.text)
    return labels


def _runs_of(team: Lineup, teams: Sequence[Lineup], served: Served) -> list[Path]:
    """Return the runs with which a lineup's result is saved.

    These are the runs whose adapters play. The base model alone, or with scripts, is the state of a
    run before its first step. Its result is saved with the run of the server's session, and with
    the runs whose adapters play in the command's other lineups.
    """
    resolver = served.resolver
    runs = dict.fromkeys(resolver.run_folders(team.refs))
    if not runs and Role.BASE in team.refs:
        session_run = resolver.session_run()
        if session_run is not None:
            runs[session_run] = None
        for other in teams:
            runs |= dict.fromkeys(resolver.run_folders(other.refs))
    return list(runs)


def _keep_with_runs(
    runs: Iterable[Path],
    document: dict[str, Any],
    digest: str,
    out: Path | None,
    say: Callable[[str], None],
) -> bool:
    """Save a result with its runs on this machine.

    A run's page, its model card and comparisons of runs read it there.

    Args:
        runs: Run folders, see `_runs_of`.
        document: The result.
        digest: Digest of everything that the result depends on.
        out: Where the user wanted the result; a run that holds it already gets no second copy.
        say: Receives what was saved, or why it was not.

    Returns:
        Whether it is saved with a run.
    """
    is_kept = False
    temperature = document["temperature"]
    num_tasks = len(document["scores"])
    # Without a temperature, only scripts played, and their result is saved with no run.
    sampling = f"T{temperature:g}" if temperature else "greedy"
    stem = re.sub(r"[^\w@.-]+", "_", document["label"])[-_MAX_STEM:]
    for run in runs:
        if out is not None and run.resolve() in out.resolve().parents:
            is_kept = True
            continue
        path = run / EVALUATIONS / f"{stem}-{sampling}-{num_tasks}-{digest[:8]}.json"
        try:
            write_document(path, document)
        except SettingsError as error:
            say(f"not saved with the run: {error}")
        else:
            is_kept = True
            say(f"saved with the run: {path}")
    return is_kept
