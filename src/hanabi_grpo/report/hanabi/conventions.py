"""Conventions in sentences and tables: what a team's hints mean to their receivers."""

from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.envs.hanabi.conventions import (
    ANY_HINT,
    OF_HINTS,
    Answers,
    ConventionReport,
    convention_report,
)
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet
from hanabi_grpo.rollout.recordings import read_recordings, recording_files
from hanabi_grpo.texts import visible

_HEEDED = 0.1
"""Least play signal of a hint that is reported as meaningful."""
_MIN_COUNT = 30
"""Least number of answered hints about which the report makes a statement."""
_NOTE = (
    "All in percent. What the receiver does on its next turn: plays it (a touched card), plays "
    "(any card), discards, hints. Oldest, newest: of plays of a touched card where several were "
    "touched. Scores: of touched cards played. Fits: of touched cards, those playable when hinted. "
    "Signal: plays it, minus plays without a new hint; 0 or less for a receiver that ignores hints."
)


def count_conventions(path: Path) -> tuple[ConventionReport, list[str]]:
    """Count what hints mean over recorded games.

    Args:
        path: A run folder, a folder of games, or a file.

    Returns:
        The counts, and notes about what was left out.

    Raises:
        SettingsError: There are no games, or games of several boards.
    """
    recordings, notes = read_recordings(recording_files(path))
    others = {recording.episode.env for recording in recordings} - {HANABI.name}
    if others:
        raise SettingsError(
            f"{path}: holds games of {', '.join(sorted(others))}; conventions are counted in "
            "games of hanabi."
        )
    games = [make_timeline(recording).game for recording in recordings]
    boards = {}
    for game in games:
        boards[game.spec.hash] = f"{game.spec.preset} with {game.spec.num_players} players"
    if len(boards) > 1:
        raise SettingsError(
            f"{path}: holds games of several boards ({', '.join(boards.values())}); give files of "
            "one board."
        )
    label = "/".join(path.resolve().parts[-2:])
    return convention_report(label, games), notes


def convention_sheet(report: ConventionReport) -> Sheet:
    """Return what each kind of hint means to the team and to each receiver."""
    spec = report.spec
    share_titles = [title for title, _, _ in OF_HINTS.values()]
    groups = []
    for receiver, answers_of_hint in report.sides.items():
        rows = []
        for hint, answers in answers_of_hint.items():
            if answers.count:
                rows.append(_row(receiver, hint, answers))
        groups.append(rows)
    return Sheet(
        title=(
            f"{visible(report.label)}: {report.num_games} games of {spec.preset}, "
            f"{spec.num_players} players: what a hint means"
        ),
        columns=("receiver", "hint", "n", *share_titles, "signal"),
        groups=groups,
        num_names=2,
        note=_NOTE,
    )


def convention_sentence(report: ConventionReport) -> str:
    """Return what hints mean to this team in one sentence; "" with too few hints."""
    answers = report.sides["team"][ANY_HINT]
    play_share = answers.shares["plays_touched"]
    if answers.count < _MIN_COUNT or play_share is None or answers.signal is None:
        return ""
    if answers.signal < _HEEDED:
        return "Hints hardly change what the next player does."
    sentence = f"After a hint, the receiver plays a touched card in {play_share:.0%} of cases"
    oldest = answers.shares["oldest_of_choices"]
    newest = answers.shares["newest_of_choices"]
    if oldest is not None and newest is not None:
        choice = "oldest" if oldest >= newest else "newest"
        share = max(oldest, newest)
        sentence += f"; with several to choose from, the {choice} one in {share:.0%}"
    return f"{sentence}."


def _row(receiver: str, hint: str, answers: Answers) -> Sequence[str]:
    signal = _percent(answers.signal)
    if answers.error is not None:
        signal += f" ± {100 * answers.error:.0f}"
    shares = map(_percent, answers.shares.values())
    return (receiver, hint, str(answers.count), *shares, signal)


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else str(round(100 * share))
