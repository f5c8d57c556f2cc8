"""Kinds of evaluations: which evaluations of different runs may share a table.

A file whose name the user chose, e.g. `sampled.json`, is compared with the files of the same name
in the other runs. Files that `evaluate` stored in `evaluations/` have generated names, which differ
between runs; they are compared where the lineup has the same form and everything that the games
depend on is the same: rules, tasks, sampling, the longest reply and models behind URLs. If a run
has several such evaluations, e.g. of two checkpoints, the one with the most training steps counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hanabi_grpo.runs.evaluation_files import RunEvaluations, StoredEvaluation
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.settings.refs import is_frozen, is_url, parse_checkpoint, seat_adapter

_TRAINED = "trained"
"""Replaces an adapter of the run in the form of a lineup."""
_VERSION_MARK = "@"
"""Separates an adapter of the server from its version, e.g. "player_1@latest"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """Everything that the games of an evaluation depend on, except the players."""

    spec_hash: str
    preset: str
    suite: str
    seeds: tuple[int, ...]
    temperature: float | None
    top_p: float
    top_k: int
    max_tokens: int | None
    urls: tuple[tuple[str, str], ...]
    """Models behind URLs that play: spec and identity, ascending."""

    @classmethod
    def of(cls, result: EvaluationResult) -> "TaskKey":
        """Return the key of a result."""
        return cls(
            spec_hash=result.spec_hash,
            preset=result.preset,
            suite=result.suite,
            seeds=result.seeds,
            temperature=result.temperature,
            top_p=result.top_p,
            top_k=result.top_k,
            max_tokens=result.max_tokens,
            urls=tuple(sorted(url_models(result).items())),
        )


def url_models(result: EvaluationResult) -> dict[str, str]:
    """Return the identity of each model behind a URL that plays, by its spec."""
    return {spec: model for spec, model in result.policies.items() if is_url(spec)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationKind:
    """Key that is the same for all evaluations of one table.

    Example:
        EvaluationKind(name="sampled") is a file `sampled.json` in each run;
        EvaluationKind(name="trained team", tasks=TaskKey(…)) is a result that `evaluate RUN` stored
    """

    name: str
    """Stem of the file that the user named, or the form of the lineup, see `lineup_form`."""
    tasks: TaskKey | None = None
    """None for files that the user named: only their name defines the kind."""

    @property
    def title(self) -> str:
        """Name in notes, e.g. "sampled.json" or "trained team"."""
        return f"{self.name}.json" if self.tasks is None else self.name

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Key by which kinds are sorted: named files first, then by lineup, board and tasks."""
        if self.tasks is None:
            return (False, self.name)
        temperature = -1.0 if self.tasks.temperature is None else self.tasks.temperature
        return (
            True,
            self.name,
            self.tasks.preset,
            self.tasks.spec_hash,
            self.tasks.suite,
            self.tasks.seeds,
            temperature,
            self.tasks.top_p,
            self.tasks.top_k,
            self.tasks.max_tokens or 0,
            self.tasks.urls,
        )


def evaluations_by_kind(evaluations: RunEvaluations) -> dict[EvaluationKind, EvaluationResult]:
    """Return the evaluations of one run that a comparison uses, by kind.

    Reference scripts are left out, and so are evaluations in which adapters of several runs play
    together: they are not the score of a single run.
    """
    results: dict[EvaluationKind, EvaluationResult] = {}
    for stored in evaluations.results:
        result = stored.result
        kind = _kind_of(stored)
        if kind is None:
            continue
        known = results.get(kind)
        # Of two files of one name, in the run folder and next to it, the one in the folder counts.
        is_better = known is None
        if known is not None and kind.tasks is not None:
            is_better = result.trained_steps > known.trained_steps
        if is_better:
            results[kind] = result
    return results


def with_known_limits(
    evaluations: Sequence[Mapping[EvaluationKind, EvaluationResult]],
) -> list[dict[EvaluationKind, EvaluationResult]]:
    """Return the evaluations of all runs, those without a reply limit beside those that fit.

    Earlier versions did not record the limit. Such an evaluation counts as one with a limit if all
    others that are otherwise of its kind have the same one.

    Args:
        evaluations: By kind, for each run.
    """
    limits: dict[EvaluationKind, set[int]] = {}
    for kind in all_kinds(evaluations):
        if kind.tasks is not None and kind.tasks.max_tokens is not None:
            limits.setdefault(_without_limit(kind), set()).add(kind.tasks.max_tokens)
    completed = []
    for evaluations_of_run in evaluations:
        by_kind: dict[EvaluationKind, EvaluationResult] = {}
        for kind, result in evaluations_of_run.items():
            known = limits.get(kind, set())
            fitting = kind
            if kind.tasks is not None and len(known) == 1:
                [limit] = known
                fitting = replace(kind, tasks=replace(kind.tasks, max_tokens=limit))
            other = by_kind.get(fitting)
            if other is None or result.trained_steps > other.trained_steps:
                by_kind[fitting] = result
        completed.append(by_kind)
    return completed


def _without_limit(kind: EvaluationKind) -> EvaluationKind:
    """Return the kind of the same evaluation by an earlier version."""
    tasks = kind.tasks
    return kind if tasks is None else replace(kind, tasks=replace(tasks, max_tokens=None))


def _kind_of(stored: StoredEvaluation) -> EvaluationKind | None:
    """Return the kind of an evaluation; None where it is not the score of a single run."""
    if stored.is_alone and not stored.is_kept:
        return EvaluationKind(name=stored.path.stem)
    form = lineup_form(stored.result)
    if form is None:
        return None
    return EvaluationKind(name=form, tasks=TaskKey.of(stored.result))


def lineup_form(result: EvaluationResult) -> str | None:
    """Return the players of a lineup, with every adapter of the run called "trained".

    Returns:
        E.g. "trained team" where the run's adapters fill every seat, "trained, iggi", "trained
        player_1, iggi" where that adapter was chosen, or "hint-bot, hint-bot" for scripts; with "in
        one seat order" appended where other orders are possible. None where adapters of several
        runs play.
    """
    order = result.orders[0]
    runs = set()
    names = []
    for spec, seat in zip(order.words, order.seats, strict=True):
        if seat_adapter(seat) is None:
            names.append(seat)
            continue
        run, adapter = split_spec(spec, seat)
        runs.add(run)
        names.append(f"{_TRAINED} {adapter}" if adapter else _TRAINED)
    if len(runs) > 1:
        return None
    if set(names) == {_TRAINED}:
        return f"{_TRAINED} team"
    form = ", ".join(names)
    has_one_order = len(result.orders) == 1 and len(set(names)) > 1
    return f"{form} in one seat order" if has_one_order else form


def split_spec(spec: str, seat: str) -> tuple[str, str]:
    """Return where the adapter of a seat comes from, and its name where the spec chose one.

    Example:
        split_spec("outputs/run:player_1", "frozen_0123456789abcdef@50") ==
            ("outputs/run", "player_1")
        split_spec("player_1@latest", "player_1@50") == ("", "player_1")
        split_spec("served", "player_1@50") == ("", "")
    """
    if is_frozen(seat):
        ref = parse_checkpoint(spec)
        return str(ref.place), ref.adapter or ""
    adapter, version_mark, _ = spec.partition(_VERSION_MARK)
    return "", adapter if version_mark else ""


def all_kinds(
    evaluations: Sequence[Mapping[EvaluationKind, EvaluationResult]],
) -> list[EvaluationKind]:
    """Return every kind that at least one run has, sorted."""
    kinds: set[EvaluationKind] = set()
    for evaluations_of_run in evaluations:
        kinds.update(evaluations_of_run)
    return sorted(kinds, key=lambda kind: kind.sort_key)
