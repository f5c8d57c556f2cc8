"""What a team's moves mean to its players, counted over thousands of games.

Map:
    layout      which counters there are, and where each one lies
    walk        one game, move by move, into counters
    counts      ConventionCounts: add games
    estimates   standard errors over deals, mutual information
    figures     the names, formulas and sources of the figures
    report      counters to figures
    cells       what the page's tables and bars are made of

Example:
    counts = ConventionCounts(spec)
    for seed in range(1000):
        counts.add(play_scripted(spec, team, suite="eval", seed=seed))
    report = convention_report("iggi,iggi", counts)
"""

from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts
from hanabi_grpo.envs.hanabi.conventions.estimates import Estimate
from hanabi_grpo.envs.hanabi.conventions.report import ConventionReport, convention_json, convention_report

__all__ = [
    "ConventionCounts",
    "ConventionReport",
    "Estimate",
    "convention_json",
    "convention_report",
]
