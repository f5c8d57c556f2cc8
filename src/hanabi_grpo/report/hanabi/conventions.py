"""Conventions in words and tables: what the hints of a team mean to their receivers."""

from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.envs.hanabi.conventions import (
    ANY_HINT,
    OF_HINTS,
    Answers,
    ConventionReport,
    convention_report,
)
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet
from hanabi_grpo.rollout.recordings import read_recordings, recording_files

_HEEDED = 0.1
"""Play signal from which a hint is said to mean something."""
_MIN_COUNT = 30
"""Answered hints below which nothing is said."""
_NOTE = (
    "Per cent. On the receiver's next turn: plays it (a touched card), plays (any), discards, "
    "hints; of plays where "
    "several were touched the oldest and the newest; of touched cards played those that score; of "
    "cards touched those "
    "that fit. Signal: plays it, minus plays without a new hint; 0 or less of a receiver that "
    "does not listen."
)


def count_conventions(place: Path) -> tuple[ConventionReport, list[str]]:
    """Count over recorded games of a run folder, a folder of games, or a file; also returns what
    was left out.

    Raises:
        SettingsError: No games, or games of several boards.
    """
    recordings, notes = read_recordings(recording_files(place))
    games = [make_timeline(recording).game for recording in recordings]
    boards = {
        game.spec.hash: f"{game.spec.preset} with {game.spec.num_players} players" for game in games
    }
    if len(boards) > 1:
        raise SettingsError(
            f"{place}: holds games of several boards ({', '.join(boards.values())}); give files "
            "of one."
        )
    return convention_report("/".join(place.resolve().parts[-2:]), games), notes


def convention_sheet(report: ConventionReport) -> Sheet:
    """Return what each kind of hint means to the team and to each receiver."""
    spec = report.spec
    title = (
        f"{visible(report.label)}: {report.num_games} games of {spec.preset}, "
        f"{spec.num_players} players"
    )
    return Sheet(
        title=f"{title}: what a hint means",
        columns=("receiver", "hint", "n", *(title for title, _, _ in OF_HINTS.values()), "signal"),
        groups=[
            [_row(name, kind, answers) for kind, answers in hints.items() if answers.count]
            for name, hints in report.sides.items()
        ],
        num_names=2,
        note=_NOTE,
    )


def convention_sentence(report: ConventionReport) -> str:
    """Return what hints mean to this team in one plain sentence; "" from too few hints."""
    found = report.sides["team"][ANY_HINT]
    plays = found.shares["plays_touched"]
    if found.count < _MIN_COUNT or plays is None or found.signal is None:
        return ""
    if found.signal < _HEEDED:
        return "Hints hardly change what the next player does."
    parts = [f"After a hint its receiver plays a touched card in {plays:.0%} of cases"]
    oldest, newest = found.shares["oldest_of_choices"], found.shares["newest_of_choices"]
    if oldest is not None and newest is not None:
        which, share = ("oldest", oldest) if oldest >= newest else ("newest", newest)
        parts.append(f"where it could choose, the {which} one in {share:.0%}")
    return "; ".join(parts) + "."


def _row(name: str, kind: str, answers: Answers) -> Sequence[str]:
    error = "" if answers.error is None else f" ± {100 * answers.error:.0f}"
    return (
        name,
        kind,
        str(answers.count),
        *map(_cell, answers.shares.values()),
        _cell(answers.signal) + error,
    )


def _cell(share: float | None) -> str:
    return UNKNOWN if share is None else str(round(100 * share))
