"""Figures of an ad-hoc evaluation: scores with partners as shares of their best-response bounds.

The share of a partner is the candidate's mean score with it, over all seats, divided by the bound
(best-response proximity of ZSC-Eval, arXiv 2310.05208). A bound is

- *exact*: the best score of any player, computed on a small board;
- *given*, or *trained*: a score, or the score of a policy that was trained as a best response;
- *best known*: otherwise, the best score seen here with that partner, by any candidate or by the
  partner itself. It is not a bound: a share of 100 % only means that nobody here did better. If
  other partners have bounds, these shares are in no mean.

Intervals hold over tasks (decks): all lineups play the same ones, so a resampled set of tasks
applies to scores and to measured bounds alike. Exact and given bounds are taken as they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.evaluation.adhoc.bounds import ExactBound
from hanabi_grpo.evaluation.adhoc.plan import (
    AdhocPlan,
    candidate_name,
    pair_name,
    partner_name,
    response_name,
)
from hanabi_grpo.evaluation.adhoc.provenance import HELD_OUT
from hanabi_grpo.evaluation.crossplay.plan import Entry
from hanabi_grpo.evaluation.evaluate import describe_sampling, played_facts, score_range
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, with_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.task_statistics import COVERAGE, RESAMPLES, Interval

BoundKind = Literal["exact", "given", "trained", "best known"]
_BEST_KNOWN: BoundKind = "best known"
_FORMAT = 1
"""Version of the JSON document."""
_WORST_SHARE = 10
"""The worst tenth of the partners, at least one."""
_SEED = 20240229
_UNKNOWN = Interval(mean=math.nan, standard_error=math.nan, low=math.nan, high=math.nan)

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The score that counts as 100 % with a partner."""

    kind: BoundKind
    mean: float
    """Mean score over all seats."""
    seats: tuple[float, ...] = ()
    """By the seat of the player with the partner; empty: unknown."""
    source: str = ""
    """Who reached it, or the option that gave it; empty for exact bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A candidate with a partner."""

    partner: int
    """Index in the pool."""
    relation: str
    """How the candidate met the partner, see `provenance`; `HELD_OUT`: it did not."""
    score: Interval
    """Mean score over tasks and seats."""
    seats: tuple[float, ...]
    """Mean score by the candidate's seat."""
    share: Interval
    """Of the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFigures:
    """A candidate's figures with all partners; NaN if there is nothing to average."""

    self_play: Interval
    """Score of its own team."""
    pairings: tuple[Pairing, ...]
    """In the order of the pool; without itself and without what was not played."""
    score: Interval
    """Mean score over the partners that are held out."""
    share: Interval
    """Mean share over them."""
    worst: Interval
    """Mean share over the worst tenth of them."""

    @property
    def num_held_out(self) -> int:
        """Number of partners that are held out."""
        return sum(pairing.relation == HELD_OUT for pairing in self.pairings)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdhocSummary:
    """A plan with its results and figures."""

    plan: AdhocPlan
    results: Mapping[str, EvaluationResult]
    """By the lineup's name; fewer than planned if the evaluation was interrupted."""
    bounds: tuple[Bound | None, ...]
    """By partner; None: nothing was played with that partner yet."""
    candidates: tuple[CandidateFigures, ...]

    @property
    def partner_labels(self) -> tuple[str, ...]:
        """Names of the pool."""
        return tuple(entry.label for entry in self.plan.adhoc.partners)

    @property
    def candidate_labels(self) -> tuple[str, ...]:
        """Names of the candidates."""
        return tuple(entry.label for entry in self.plan.adhoc.candidates)


def summarise_adhoc(
    plan: AdhocPlan, results: Mapping[str, EvaluationResult], exact: Mapping[str, ExactBound]
) -> AdhocSummary:
    """Return the figures of what was played so far.

    Args:
        plan: The plan.
        results: By the lineup's name.
        exact: Exact bounds by script.
    """
    num_candidates = len(plan.adhoc.candidates)
    bounds = []
    bound_results: list[EvaluationResult | None] = []
    for j, partner in enumerate(plan.adhoc.partners):
        bound, measured = _bound(plan, results, exact, j, partner)
        bounds.append(bound)
        bound_results.append(measured)
    candidates = []
    for i in range(num_candidates):
        candidates.append(_candidate_figures(plan, results, bounds, bound_results, i))
    return AdhocSummary(
        plan=plan, results=dict(results), bounds=tuple(bounds), candidates=tuple(candidates)
    )


def _bound(
    plan: AdhocPlan,
    results: Mapping[str, EvaluationResult],
    exact: Mapping[str, ExactBound],
    j: int,
    partner: Entry,
) -> tuple[Bound | None, EvaluationResult | None]:
    """Return the bound of a partner, and the games in which it was measured, if it was."""
    given = plan.adhoc.given.get(partner.label)
    if isinstance(given, float):
        return Bound(kind="given", mean=given, source="--bound"), None
    if isinstance(given, Entry):
        result = results.get(response_name(j))
        if result is None:
            return None, None
        bound = Bound(
            kind="trained", mean=result.mean, seats=seat_means(result), source=given.label
        )
        return bound, result
    script = str(partner.ref)
    if script in exact:
        seats = exact[script].seats
        return Bound(kind="exact", mean=exact[script].mean, seats=seats), None
    seen = []
    itself = results.get(partner_name(j))
    if itself is not None:
        seen.append((itself, "itself"))
    for i, candidate in enumerate(plan.adhoc.candidates):
        result = results.get(pair_name(i, j))
        if result is not None:
            seen.append((result, candidate.label))
    if not seen:
        return None, None
    best, who = max(seen, key=lambda one: one[0].mean)
    return Bound(kind=_BEST_KNOWN, mean=best.mean, source=who), best


def seat_means(result: EvaluationResult) -> tuple[float, ...]:
    """Return the mean score by the seat of a lineup's first policy.

    A lineup of a single policy has only one seat order, whose mean holds for every seat.
    """
    num_players = result.num_players
    if len(result.orders) == 1:
        return (result.orders[0].mean,) * num_players
    by_seat = [0.0] * num_players
    for number, order in enumerate(result.orders):
        # Each order moves the policies one seat to the left.
        by_seat[(num_players - number) % num_players] = order.mean
    return tuple(by_seat)


def _candidate_figures(
    plan: AdhocPlan,
    results: Mapping[str, EvaluationResult],
    bounds: Sequence[Bound | None],
    bound_results: Sequence[EvaluationResult | None],
    i: int,
) -> CandidateFigures:
    own = results.get(candidate_name(i))
    pairings = []
    held_out_scores = []
    held_out_shares = []
    counted = _counted_bounds(bounds)
    for j, bound in enumerate(bounds):
        result = results.get(pair_name(i, j))
        if result is None or bound is None:
            continue
        resampled = _Resampled(result)
        scores = resampled.means(result)
        measured = bound_results[j]
        scale = np.full_like(scores, bound.mean)
        if measured is not None:
            scale = resampled.means(measured)
        share = _UNKNOWN
        if bound.mean > 0:
            # A resample in which the bound is 0 does not count against the candidate.
            shares = np.divide(scores, scale, out=np.ones_like(scores), where=scale > 0)
            share = _interval(result.mean / bound.mean, shares)
        relation = plan.histories[i].relation(plan.adhoc.partners[j].ref)
        pairings.append(
            Pairing(
                partner=j,
                relation=relation,
                score=result.estimate,
                seats=seat_means(result),
                share=share,
            )
        )
        if relation == HELD_OUT:
            held_out_scores.append((result.mean, scores))
            if j in counted:
                held_out_shares.append((share.mean, shares))
    score = share = worst = _UNKNOWN
    if held_out_scores:
        score = _interval(
            fmean(mean for mean, _ in held_out_scores),
            np.mean([values for _, values in held_out_scores], axis=0),
        )
    if held_out_shares:
        means = np.array([[mean] for mean, _ in held_out_shares])
        resampled_shares = np.array([values for _, values in held_out_shares])
        share = _interval(float(means.mean()), resampled_shares.mean(axis=0))
        worst = _interval(float(_worst(means)[0]), _worst(resampled_shares))
    return CandidateFigures(
        self_play=own.estimate if own is not None else _UNKNOWN,
        pairings=tuple(pairings),
        score=score,
        share=share,
        worst=worst,
    )


def _counted_bounds(bounds: Sequence[Bound | None]) -> frozenset[int]:
    """Return the numbers of the partners whose shares can be averaged.

    Their bounds are above 0, and all of them are bounds, or none is.
    """
    positive = {}
    for number, bound in enumerate(bounds):
        if bound is not None and bound.mean > 0:
            positive[number] = bound
    real = frozenset(number for number, bound in positive.items() if bound.kind != _BEST_KNOWN)
    return real or frozenset(positive)


class _Resampled:
    """The same resampled tasks for every lineup: whole starts, drawn with replacement."""

    def __init__(self, result: EvaluationResult) -> None:
        numbers, self._clusters = np.unique(np.asarray(result.starts), return_inverse=True)
        count = len(numbers)
        rng = np.random.default_rng(_SEED)
        self._draws = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
        self._sizes = self._draws @ np.bincount(self._clusters).astype(np.float64)

    def means(self, result: EvaluationResult) -> Values:
        """Return a lineup's mean in each resample, (RESAMPLES,)."""
        sums = np.bincount(self._clusters, np.asarray(result.scores))
        return np.asarray(self._draws @ sums / self._sizes, dtype=np.float64)


def _worst(shares: Values) -> Values:
    """Return the mean of the worst tenth of the partners, (n,), of shares (partners, n)."""
    count = max(1, len(shares) // _WORST_SHARE)
    return np.asarray(np.sort(shares, axis=0)[:count].mean(axis=0), dtype=np.float64)


def _interval(mean: float, resampled: Values) -> Interval:
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return Interval(
        mean=mean,
        standard_error=float(np.std(resampled, ddof=1)),
        low=float(low),
        high=float(high),
    )


def describe_adhoc(summary: AdhocSummary) -> list[str]:
    """Return what was played, in a few lines."""
    plan = summary.plan
    spec = plan.setup.spec
    greatest = score_range(spec)[1]
    board = spec.env if spec.preset == spec.env else f"{spec.env} {spec.preset}"
    sampling = describe_sampling(plan.temperature, plan.token_filter)
    lines = [
        f"{board}, {spec.num_players} players, rules {spec.hash}, {spec.score} at most "
        f"{greatest:g}",
        f"{plan.num_tasks} tasks of suite {plan.suite}, the same for every lineup{sampling}",
    ]
    if plan.adhoc.left_out:
        lines.append(
            f"not in the pool, because they search at each move: {', '.join(plan.adhoc.left_out)} "
            "(add one with --with)"
        )
    for candidate, history in zip(plan.adhoc.candidates, plan.histories, strict=True):
        if history.missing:
            lines.append(
                f"{candidate.label} started from {', '.join(map(str, history.missing))}, which is "
                "not on this disk: partners that it met there may count as unfamiliar"
            )
    if len(summary.results) < len(plan.lineups):
        lines.append(f"not finished: {len(summary.results)} of {len(plan.lineups)} lineups")
    return lines


def percent(share: float) -> str:
    """Return a share as text, e.g. "87.5 %"; a dash where it is unknown."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else UNKNOWN


def percent_interval(share: Interval) -> str:
    """Return a share with its interval, e.g. "87.5 % (85.1 to 90.2)"."""
    if not math.isfinite(share.mean):
        return UNKNOWN
    return f"{percent(share.mean)} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def adhoc_sheets(summary: AdhocSummary) -> list[Sheet]:
    """Return every table: of all candidates, of each with its partners, and of the pool."""
    sheets = []
    if summary.candidates:
        sheets.append(_candidates_sheet(summary))
    for label, candidate in zip(summary.candidate_labels, summary.candidates, strict=True):
        sheets.append(_pairings_sheet(summary, label, candidate))
    sheets.append(_pool_sheet(summary))
    return sheets


def _candidates_sheet(summary: AdhocSummary) -> Sheet:
    rows = []
    for label, candidate in zip(summary.candidate_labels, summary.candidates, strict=True):
        own = candidate.self_play
        rows.append(
            (
                label,
                with_error(own.mean, own.standard_error),
                with_error(candidate.score.mean, candidate.score.standard_error),
                percent_interval(candidate.share),
                percent_interval(candidate.worst),
                str(candidate.num_held_out),
            )
        )
    note = (
        "Means over held-out partners with equal weights; shares of the bound only over partners "
        "whose bound is above 0. In parentheses: 95 % intervals over tasks, for these partners. "
        "Worst tenth: the partners with the lowest shares, at least one."
    )
    unbounded = _left_out_of_shares(summary)
    if unbounded:
        note += (
            " Left out of the shares, because their bound is only the best score seen here: "
            f"{', '.join(unbounded)}."
        )
    partial = _partial_strangers(summary)
    if partial:
        note += (
            " The candidates' means are not over the same partners; held out for only some of "
            f"them: {', '.join(partial)}."
        )
    return Sheet(
        title="With held-out partners",
        columns=("", "self-play", "score", "share of the bound", "worst tenth", "partners"),
        groups=[rows],
        note=note,
    )


def _left_out_of_shares(summary: AdhocSummary) -> list[str]:
    """Return the partners whose best known scores are not averaged with bounds."""
    counted = _counted_bounds(summary.bounds)
    names = []
    for number, bound in enumerate(summary.bounds):
        if bound is not None and bound.mean > 0 and number not in counted:
            names.append(summary.partner_labels[number])
    return names


def _partial_strangers(summary: AdhocSummary) -> list[str]:
    """Return the partners that count for some candidates and not for others."""
    strangers = []
    for figures in summary.candidates:
        held_out = {one.partner for one in figures.pairings if one.relation == HELD_OUT}
        strangers.append(held_out)
    everybody = set().union(*strangers)
    partial = [j for j in sorted(everybody) if not all(j in held_out for held_out in strangers)]
    return [summary.partner_labels[j] for j in partial]


def _pairings_sheet(summary: AdhocSummary, label: str, candidate: CandidateFigures) -> Sheet:
    num_players = summary.plan.setup.spec.num_players
    held_out: list[tuple[str, ...]] = []
    met: list[tuple[str, ...]] = []
    for pairing in candidate.pairings:
        bound = summary.bounds[pairing.partner]
        itself = summary.results.get(partner_name(pairing.partner))
        name = summary.partner_labels[pairing.partner]
        row = (
            f"{name} ({pairing.relation})" if pairing.relation else name,
            with_error(pairing.score.mean, pairing.score.standard_error),
            *map(figure, pairing.seats),
            figure(itself.mean if itself is not None else None),
            f"{figure(bound.mean)} {bound.kind}" if bound is not None else UNKNOWN,
            percent_interval(pairing.share),
        )
        (met if pairing.relation else held_out).append(row)
    groups = [group for group in (held_out, met) if group]
    return Sheet(
        title=f"{label} with each partner",
        columns=(
            "partner",
            "score",
            *[f"in seat {seat}" for seat in range(num_players)],
            "partner's self-play",
            "bound",
            "share",
        ),
        groups=groups,
        note=(
            "Score: mean ± standard error over tasks and seats. Partner's self-play: "
            "the partner with itself. Partners marked in parentheses were met in training and are "
            "left out of the means."
        ),
    )


def _pool_sheet(summary: AdhocSummary) -> Sheet:
    num_players = summary.plan.setup.spec.num_players
    rows = []
    for j, label in enumerate(summary.partner_labels):
        bound = summary.bounds[j]
        itself = summary.results.get(partner_name(j))
        seats = (UNKNOWN,) * num_players
        best = kind = UNKNOWN
        if bound is not None:
            best = figure(bound.mean)
            kind = f"{bound.kind}: {bound.source}" if bound.source else bound.kind
            if bound.seats:
                seats = tuple(map(figure, bound.seats))
        alone = UNKNOWN
        if itself is not None:
            alone = with_error(itself.mean, itself.standard_error)
        rows.append((label, alone, best, *seats, kind))
    return Sheet(
        title="Pool of partners",
        columns=(
            "partner",
            "self-play",
            "bound",
            *[f"best response in seat {seat}" for seat in range(num_players)],
            "kind of bound",
        ),
        groups=[rows],
        note=(
            "Exact: the highest mean over all starts that any player can reach with this partner. "
            "Best known: the best score seen here, which is not a bound."
        ),
    )


def adhoc_json(summary: AdhocSummary) -> dict[str, Any]:
    """Return a summary as a JSON object; NaN stands for unknown."""
    plan = summary.plan
    return {
        "format": _FORMAT,
        **played_facts(
            plan.setup,
            suite=plan.suite,
            num_tasks=plan.num_tasks,
            temperature=plan.temperature,
            token_filter=plan.token_filter,
        ),
        "complete": len(summary.results) == len(plan.lineups),
        "left_out": plan.adhoc.left_out,
        "partners": [_partner_json(summary, j) for j in range(len(summary.partner_labels))],
        "candidates": [_candidate_json(summary, i) for i in range(len(summary.candidates))],
    }


def _partner_json(summary: AdhocSummary, j: int) -> dict[str, Any]:
    entry = summary.plan.adhoc.partners[j]
    itself = summary.results.get(partner_name(j))
    bound = summary.bounds[j]
    document = None
    if bound is not None:
        document = {
            "kind": bound.kind,
            "mean": bound.mean,
            "seats": bound.seats or None,
            "source": bound.source or None,
        }
    return {
        "label": entry.label,
        "word": str(entry.ref),
        "with_itself": itself.estimate.to_json() if itself is not None else None,
        "bound": document,
    }


def _candidate_json(summary: AdhocSummary, i: int) -> dict[str, Any]:
    entry = summary.plan.adhoc.candidates[i]
    candidate = summary.candidates[i]
    partners = []
    for pairing in candidate.pairings:
        partners.append(
            {
                "partner": summary.partner_labels[pairing.partner],
                "relation": pairing.relation or "held out",
                "score": _interval_json(pairing.score),
                "seats": pairing.seats,
                "share": _interval_json(pairing.share),
            }
        )
    return {
        "label": entry.label,
        "word": str(entry.ref),
        "met": dict(summary.plan.histories[i].met),
        "self_play": _interval_json(candidate.self_play),
        "num_held_out": candidate.num_held_out,
        "score": _interval_json(candidate.score),
        "share": _interval_json(candidate.share),
        "worst_tenth": _interval_json(candidate.worst),
        "partners": partners,
    }


def _interval_json(interval: Interval) -> dict[str, Any]:
    return {
        "mean": interval.mean,
        "standard_error": interval.standard_error,
        "interval_95": [interval.low, interval.high],
    }
