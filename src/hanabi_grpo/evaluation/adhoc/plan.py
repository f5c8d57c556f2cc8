"""Plan of an ad-hoc evaluation: candidates, partners, bounds, and the lineups that are played.

All lineups play the same tasks. A candidate takes one seat and a partner every other seat; the
candidate plays each seat once per task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs.base import Setup, stable_hash
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.adhoc.provenance import History, history_of
from hanabi_grpo.evaluation.crossplay.plan import (
    Entry,
    name_entries,
    parse_entry,
    refuse_one_player,
)
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.messages import playable_scripts
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.settings.refs import ScriptRef
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter

Given = float | Entry
"""A bound that was given: a score, or the policy that was trained as a best response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adhoc:
    """What is evaluated."""

    candidates: tuple[Entry, ...]
    """Entries whose players are evaluated; empty: only the partners, with their bounds."""
    partners: tuple[Entry, ...]
    """The pool of partners."""
    given: Mapping[str, Given] = field(default_factory=dict)
    """By a partner's label, the bound that was given."""
    left_out: tuple[str, ...] = ()
    """Scripts that are not in the pool because they are slow on this board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdhocPlan:
    """A whole ad-hoc evaluation."""

    adhoc: Adhoc
    setup: Setup[Any]
    """Environment and configuration."""
    num_tasks: int
    """Tasks of every lineup."""
    suite: str
    """Suite of the tasks."""
    temperature: float | None
    """Sampling temperature; None: only scripts play."""
    token_filter: TokenFilter
    """Which tokens models may draw."""
    histories: tuple[History, ...]
    """Per candidate, the partners that it has met."""
    lineups: Mapping[str, Lineup]
    """By name, see `pair_name` and the functions after it."""


def pair_name(candidate: int, partner: int) -> str:
    """Return the name of a lineup: a candidate with a partner."""
    return f"candidate-{candidate}-with-{partner}"


def candidate_name(candidate: int) -> str:
    """Return the name of a lineup: a candidate's own team."""
    return f"candidate-{candidate}"


def partner_name(partner: int) -> str:
    """Return the name of a lineup: a partner with itself."""
    return f"partner-{partner}"


def response_name(partner: int) -> str:
    """Return the name of a lineup: a trained best response with its partner."""
    return f"response-to-{partner}"


def parse_adhoc(
    candidates: Sequence[str],
    partners: Sequence[str],
    bounds: Sequence[str],
    setup: Setup[Any],
    *,
    only: bool = False,
) -> Adhoc:
    """Read what is evaluated.

    Args:
        candidates: Policy specs, or NAME=SPEC.
        partners: Partners added to the environment's scripts, in the same form.
        bounds: NAME=SCORE or NAME=SPEC, NAME being a partner of the pool.
        setup: Environment and configuration.
        only: Leave the environment's scripts out.

    Raises:
        SettingsError: The game has one player or no common score, a spec is unknown or given
            twice, the pool is empty, or a bound names no partner in it.
    """
    refuse_one_player(setup)
    if not setup.spec.has_common_score:
        raise SettingsError(
            f"{setup.env}: its players do not share a score, so they are not partners; "
            "use hanabi-grpo cross-play to rate opponents, or exploit for a best response."
        )
    chosen = [parse_entry(text, setup) for text in partners]
    variants = setup.environment.variants
    in_pool = {variants.get(str(ref), str(ref)) for _, ref in chosen}
    left_out = []
    scripts = [] if only else playable_scripts(setup)
    has_bounds = setup.environment.bounds_key(setup.config) is not None
    for name in scripts:
        # Two scripts that make the same moves would count twice.
        if name in variants or name in in_pool:
            continue
        if name in setup.environment.slow_policies and not has_bounds:
            left_out.append(name)
        else:
            chosen.append(("", ScriptRef(name=name)))
    if not chosen:
        raise SettingsError("the pool of partners is empty; add one: --with iggi.")
    pool = name_entries(chosen)
    return Adhoc(
        candidates=name_entries([parse_entry(text, setup) for text in candidates]),
        partners=pool,
        given=_parse_bounds(bounds, [entry.label for entry in pool], setup),
        left_out=tuple(left_out),
    )


def _parse_bounds(
    texts: Sequence[str], labels: Sequence[str], setup: Setup[Any]
) -> dict[str, Given]:
    given: dict[str, Given] = {}
    least, greatest = setup.spec.score_range
    for text in texts:
        label, equals, value = text.partition("=")
        if not equals or label not in labels:
            raise SettingsError(
                f"--bound {text!r}: give NAME=SCORE or NAME=RUN for one of {', '.join(labels)}."
            )
        if label in given:
            raise SettingsError(f"--bound {text!r}: {label} already has a bound.")
        try:
            score = float(value)
        except ValueError:
            _, ref = parse_entry(value, setup)
            given[label] = Entry(label=value, ref=ref)
            continue
        if not least < score <= greatest:
            raise SettingsError(
                f"--bound {text!r}: a score must be above {least:g} and at most {greatest:g}."
            )
        given[label] = score
    return given


def make_adhoc_plan(
    adhoc: Adhoc, setup: Setup[Any], num_tasks: int, *, suite: str, served: Served | None
) -> AdhocPlan:
    """List the lineups and look up the partners that the candidates have met.

    Args:
        adhoc: What is evaluated.
        setup: Environment and configuration.
        num_tasks: Tasks 0 to `num_tasks - 1` are played by every lineup.
        suite: Suite of the tasks.
        served: How models are played; needed unless only scripts play.
    """
    num_players = setup.spec.num_players

    def team(first: Entry, others: Entry) -> Lineup:
        refs = (first.ref, *[others.ref] * (num_players - 1))
        return Lineup(text=",".join(map(str, refs)), refs=refs)

    lineups = {}
    for j, partner in enumerate(adhoc.partners):
        lineups[partner_name(j)] = team(partner, partner)
        given = adhoc.given.get(partner.label)
        if isinstance(given, Entry):
            lineups[response_name(j)] = team(given, partner)
    for i, candidate in enumerate(adhoc.candidates):
        lineups[candidate_name(i)] = team(candidate, candidate)
        for j, partner in enumerate(adhoc.partners):
            if str(partner.ref) != str(candidate.ref):
                lineups[pair_name(i, j)] = team(candidate, partner)
    variants = setup.environment.variants
    histories = [history_of(candidate.ref, served, variants) for candidate in adhoc.candidates]
    uses_models = served is not None and any(one.needs_server for one in lineups.values())
    return AdhocPlan(
        adhoc=adhoc,
        setup=setup,
        num_tasks=num_tasks,
        suite=suite,
        temperature=served.temperature if served and uses_models else None,
        token_filter=served.token_filter if served and uses_models else ALL_TOKENS,
        histories=tuple(histories),
        lineups=lineups,
    )


def play_lineups(
    plan: AdhocPlan,
    folder: Path,
    results: dict[str, EvaluationResult],
    *,
    served: Served | None,
    begin: Callable[[Lineup], None],
    progress: Callable[[int], None],
) -> None:
    """Play every lineup; tasks that an earlier call finished are not played again.

    Args:
        plan: What is played.
        folder: Its folder, for ledgers.
        results: Receives each result by the lineup's name, as soon as it is finished.
        served: How models are played; needed unless only scripts play.
        begin: Receives each lineup before its first task.
        progress: Receives the number of the lineup's tasks that are done.

    Raises:
        ServerError: The server failed, or dropped a game.
        SettingsError: The folder holds a lineup of other players or settings, or the disk is full.
    """
    for name, lineup in plan.lineups.items():
        begin(lineup)
        results[name] = evaluate_lineup(
            lineup,
            plan.setup,
            plan.num_tasks,
            suite=plan.suite,
            served=served if lineup.needs_server else None,
            # Named by the lineup: with more partners, finished tasks are not played again.
            ledger=folder / "lineups" / f"{stable_hash(lineup.text)}.jsonl",
            progress=progress,
        )
