"""Ad-hoc evaluations without a command."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.evaluation.adhoc.bounds import ExactBound
from hanabi_grpo.evaluation.adhoc.plan import (
    AdhocPlan,
    make_adhoc_plan,
    parse_adhoc,
    play_lineups,
)
from hanabi_grpo.evaluation.adhoc.summary import AdhocSummary, summarise_adhoc
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from training_runs import LAPTOP


def adhoc_plan(
    *candidates: str,
    pool: Sequence[str],
    bounds: Sequence[str] = (),
    tasks: int = 8,
    setup: Setup[Any] = LAPTOP,
    served: Served | None = None,
) -> AdhocPlan:
    """Return a plan with these partners alone."""
    adhoc = parse_adhoc(candidates, pool, bounds, setup, only=True)
    return make_adhoc_plan(adhoc, setup, tasks, suite="eval", served=served)


def play_adhoc(
    plan: AdhocPlan, folder: Path, served: Served | None = None
) -> dict[str, EvaluationResult]:
    """Play what is missing; returns the results by name."""
    results: dict[str, EvaluationResult] = {}
    play_lineups(
        plan, folder, results, served=served, begin=lambda one: None, progress=lambda done: None
    )
    return results


def adhoc_summary(
    folder: Path, *candidates: str, exact: Mapping[str, ExactBound] | None = None, **options: Any
) -> AdhocSummary:
    """Play an ad-hoc evaluation of scripts; `options` are those of `adhoc_plan`."""
    plan = adhoc_plan(*candidates, **options)
    return summarise_adhoc(plan, play_adhoc(plan, folder), exact or {})
