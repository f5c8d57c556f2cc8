"""The page of conventions: what the moves of teams mean to their players."""

from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.envs.hanabi.conventions.cells import REPLIES, compared, figure_rows, hint_rows, matrix_rows
from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts
from hanabi_grpo.envs.hanabi.conventions.report import (
    ANY_HINT,
    MIN_COUNT,
    OF_GAMES,
    OF_PLAYS,
    PER_GAME,
    ConventionReport,
    Side,
    convention_json,
    convention_report,
)
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.page import render, write_page
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.runs.run_folder import write_json_atomic

_HEEDED = 0.1
"""Play signal from which a hint is said to mean something."""
_COMPARED = (
    "score",
    "play_signal",
    "bits_per_play",
    "certain_plays",
    "misplay_share",
    "hints",
    "wasted_share",
    "critical_discards",
)


def write_conventions(page: Path, places: Sequence[Path]) -> list[str]:
    """Count over recorded games, write the page and beside it its figures as JSON; returns lines that say so.

    Each of the places, run folders, folders of games, or files, becomes a section.

    Raises:
        SettingsError: No games, games of several boards in one place, or a file that cannot be written.
    """
    lines: list[str] = []
    reports = []
    for place in places:
        recordings, notes = read_recordings(recording_files(place))
        lines += notes
        counts: ConventionCounts | None = None
        for game in (make_timeline(recording).game for recording in recordings):
            counts = counts or ConventionCounts(game.spec)
            if game.spec.hash != counts.spec.hash:
                raise SettingsError(
                    f"{place}: holds games of several boards ({counts.spec.preset} with {counts.spec.num_players} "
                    f"players, {game.spec.preset} with {game.spec.num_players}); give files of one."
                )
            counts.add(game)
        assert counts is not None  # `read_recordings` refuses files without a game
        reports.append(convention_report("/".join(place.resolve().parts[-2:]), counts))
    lines.append(write_page(page, render_conventions(reports, title="recorded games"), "--conventions"))
    write_json_atomic(page.with_suffix(".json"), {"line_ups": [convention_json(one) for one in reports]})
    return lines


def render_conventions(reports: Sequence[ConventionReport], *, title: str) -> str:
    """Return the page of at least one line-up: all compared on common scales, then a section for each."""
    return render(
        "conventions.html.j2",
        title=visible(title),
        line_ups=[_line_up(report) for report in reports],
        charts=compared(reports, _COMPARED),
        replies=REPLIES,
        min_count=MIN_COUNT,
    )


def _line_up(report: ConventionReport) -> dict[str, object]:
    spec = report.spec
    return {
        "label": visible(report.label),
        "board": visible(f"{spec.preset}, {spec.num_players} players, board {spec.hash}"),
        "num_games": report.num_games,
        "sentence": _sentence(report),
        "num_unfinished": report.num_unfinished,
        "num_groups": report.num_groups,
        "sides": [_side(report, side) for side in (report.team, *report.seats)],
        "has_targets": spec.num_players > 2,
        "information": figure_rows(report, tuple(OF_PLAYS)),
        "per_game": figure_rows(report, (*OF_GAMES, *PER_GAME)),
    }


def _side(report: ConventionReport, side: Side) -> dict[str, object]:
    return {
        "name": side.name,
        "is_team": side is report.team,
        "matrix": matrix_rows(side.matrix, report.actions),
        "hints": hint_rows(side),
    }


def _sentence(report: ConventionReport) -> str:
    """Return what hints mean to this team in one plain sentence; "" from too few hints."""
    found = report.team.hints.get(ANY_HINT, {})
    plays, signal = found.get("plays_touched"), found.get("play_signal")
    if plays is None or signal is None or plays.is_thin or plays.value is None or signal.value is None:
        return ""
    if signal.value < _HEEDED:
        return "Hints hardly change what the next player does."
    parts = [f"After a hint its receiver plays a touched card in {plays.value:.0%} of cases"]
    oldest, newest = found["oldest_of_choices"].value, found["newest_of_choices"].value
    if oldest is not None and newest is not None:
        which, share = ("oldest", oldest) if oldest >= newest else ("newest", newest)
        parts.append(f"where it could choose, the {which} one in {share:.0%}")
    return "; ".join(parts) + "."
