"""The result of a run whose players play against each other, in one line.

In self-play of a zero-sum game one player wins what the other loses, so the mean return does not
show whether they got better. Their exploitability does, and so does the share of games that they
win against the same opponent from each seat.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hanabi_grpo.evaluation.exploit_results import ExploitFile
from hanabi_grpo.evaluation.outcomes import outcome_shares, played_roles
from hanabi_grpo.report.gains import Gain
from hanabi_grpo.report.run_views.figures import EXPLOITABILITY, series
from hanabi_grpo.runs.evaluation_result import EvaluationResult


def versus_lead(
    rows: Sequence[Mapping[str, Any]],
    exploits: Sequence[ExploitFile],
    results: Sequence[EvaluationResult],
    gain: Gain | None,
) -> str:
    """Return the result; "" if only returns were measured.

    Args:
        rows: Rows of `metrics.jsonl`.
        exploits: What `exploit` measured.
        results: Evaluations of the same tasks.
        gain: What training gained on these tasks.

    Returns:
        E.g. "exploitability 0.376 at step 20 → 0.207 at step 150, 0 in an equilibrium;
        exploit.json: served 0.207; base 0.458", or "games won against random: 0.527 → 0.475 as
        first, 0.480 → 0.510 as second".
    """
    parts = []
    steps, values = series(rows, EXPLOITABILITY)
    if steps:
        text = f"exploitability {values[-1]:.3f} at step {steps[-1]}"
        if len(steps) > 1:
            first = f"{values[0]:.3f} at step {steps[0]}"
            text = f"exploitability {first} → {values[-1]:.3f} at step {steps[-1]}"
        parts.append(f"{text}, 0 in an equilibrium")
    for exploit in exploits:
        profiles = []
        for name, value in exploit.exploitability.items():
            profiles.append(f"{name} {value:.3f}")
        prefix = exploit.path.name if steps else f"exploitability, {exploit.path.name}"
        parts.append(f"{prefix}: {'; '.join(profiles)}")
    if parts:
        return "; ".join(parts)
    return _wins(results, gain)


def _wins(results: Sequence[EvaluationResult], gain: Gain | None) -> str:
    """Return the shares of games that the first policy of each lineup won from each seat."""
    if gain is not None and gain.partners:
        before = _shares(gain.before)
        after = _shares(gain.after)
        by_role = []
        for role in after:
            if role in before:
                by_role.append(f"{before[role]:.3f} → {after[role]:.3f} as {role}")
        if by_role:
            return f"games won against {', '.join(gain.partners)}: {', '.join(by_role)}"
    lineups = []
    for result in results:
        # A lineup that plays against itself wins as much as it loses.
        is_self_play = len(set(result.orders[0].seats)) == 1 or len(result.orders) == 1
        shares = _shares(result)
        if is_self_play or not shares:
            continue
        by_role = [f"{share:.3f} as {role}" for role, share in shares.items()]
        lineups.append(f"{result.label} {', '.join(by_role)}")
    return f"games won by the first policy: {'; '.join(lineups)}" if lineups else ""


def _shares(result: EvaluationResult) -> dict[str, float]:
    """Return the share of games won by role."""
    shares = {}
    for role in played_roles(result.figures):
        shares[role] = outcome_shares(result.figures, [role])[0]
    return shares
