"""Conventions in words and tables: what the hints of a team mean to their receivers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hanabi_grpo.envs.hanabi.conventions.report import (
    ANY_HINT,
    OF_HINTS,
    OF_MOVES,
    ConventionReport,
    Estimate,
    convention_report,
)
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet
from hanabi_grpo.runs.recordings import read_recordings, recording_files

_HEEDED = 0.1
"""Play signal from which a hint is said to mean something."""
_MIN_COUNT = 30
"""Answered hints below which nothing is said."""
_NOTE = (
    "Per cent. On the receiver's next turn: plays it (a touched card), plays (any), discards, hints; of plays where "
    "several were touched the oldest and the newest; of touched cards played those that score; of cards touched those "
    "that fit. Signal: plays it, minus plays without a new hint; 0 or less of a receiver that does not listen."
)


def count_conventions(place: Path) -> tuple[ConventionReport, list[str]]:
    """Count over recorded games of a run folder, a folder of games, or a file; also returns what was left out.

    Raises:
        SettingsError: No games, or games of several boards.
    """
    recordings, notes = read_recordings(recording_files(place))
    games = [make_timeline(recording).game for recording in recordings]
    boards = {game.spec.hash: f"{game.spec.preset} with {game.spec.num_players} players" for game in games}
    if len(boards) > 1:
        raise SettingsError(
            f"{place}: holds games of several boards ({', '.join(boards.values())}); give files of one."
        )
    return convention_report("/".join(place.resolve().parts[-2:]), games), notes


def convention_sheets(report: ConventionReport) -> list[Sheet]:
    """Return what each kind of hint means to the team and to each receiver, and how all of them move."""
    sides, spec = (report.team, *report.seats), report.spec
    title = f"{visible(report.label)}: {report.num_games} games of {spec.preset}, {spec.num_players} players"
    hints = [[_hint_row(side.name, kind, row) for kind, row in side.hints.items()] for side in sides]
    moves = [
        (figure.title, *(_cell(side.figures[name], is_share=figure.is_share, error=True) for side in sides))
        for name, figure in OF_MOVES.items()
    ]
    return [
        Sheet(
            title=f"{title}: what a hint means",
            columns=("receiver", "hint", "n", *(figure.title for figure in OF_HINTS.values()), "signal"),
            groups=[[row for row in rows if row[2] != "0"] for rows in hints],
            num_names=2,
            note=_NOTE,
        ),
        Sheet(
            title=f"{title}: moves, shares in per cent",
            columns=("figure", *(side.name for side in sides)),
            groups=[moves],
        ),
    ]


def convention_sentence(report: ConventionReport) -> str:
    """Return what hints mean to this team in one plain sentence; "" from too few hints."""
    found = report.team.hints[ANY_HINT]
    plays, signal = found["plays_touched"], found["play_signal"]
    if plays.count < _MIN_COUNT or plays.value is None or signal.value is None:
        return ""
    if signal.value < _HEEDED:
        return "Hints hardly change what the next player does."
    parts = [f"After a hint its receiver plays a touched card in {plays.value:.0%} of cases"]
    oldest, newest = found["oldest_of_choices"].value, found["newest_of_choices"].value
    if oldest is not None and newest is not None:
        which, share = ("oldest", oldest) if oldest >= newest else ("newest", newest)
        parts.append(f"where it could choose, the {which} one in {share:.0%}")
    return "; ".join(parts) + "."


def _hint_row(name: str, kind: str, row: Mapping[str, Estimate]) -> Sequence[str]:
    signal = _cell(row["play_signal"], is_share=True, error=True)
    return (name, kind, str(row["plays"].count), *(_cell(row[one], is_share=True) for one in OF_HINTS), signal)


def _cell(one: Estimate, *, is_share: bool, error: bool = False) -> str:
    if one.value is None:
        return UNKNOWN
    digits, scale = (0, 100) if is_share else (2, 1)
    text = f"{round(scale * one.value, digits) + 0.0:.{digits}f}"
    return text if not error or one.error is None else f"{text} ± {scale * one.error:.{digits}f}"
