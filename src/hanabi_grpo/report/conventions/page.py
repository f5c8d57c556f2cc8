"""Convention reports as one HTML file that needs nothing else: no network, no server, no script.

Every text goes through the template, which escapes it; a content security policy names the hash of the style, so that
nothing in the page can run or fetch anything.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from hanabi_grpo.envs.hanabi.conventions.cells import REPLIES, compared, figure_rows, hint_rows, matrix_rows
from hanabi_grpo.envs.hanabi.conventions.estimates import MIN_COUNT
from hanabi_grpo.envs.hanabi.conventions.figures import OF_PLAYS, PER_GAME
from hanabi_grpo.envs.hanabi.conventions.report import ConventionReport, Side
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.errors import SettingsError

_PACKAGE = "hanabi_grpo.report.conventions"
_INFORMATION = ("action_information", "next_entropy", "hint_information")
_COMPARED = (
    "score",
    *_INFORMATION[::2],
    "play_signal",
    "bits_per_play",
    "certain_plays",
    "misplay_share",
    "hints",
    "wasted_share",
    "critical_discards",
)


def render_conventions(reports: Sequence[ConventionReport], *, title: str) -> str:
    """Return the page: the line-ups compared on common scales, then a section for each.

    Args:
        reports: One per line-up, in the order in which they are shown.
        title: What the page is of.

    Raises:
        SettingsError: There is no report.
    """
    if not reports:
        raise SettingsError("no line-up to show: give at least one report with counted games.")
    style = resources.files(_PACKAGE).joinpath("templates", "conventions.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("conventions.html.j2").render(
        title=visible(title),
        style=style,
        style_hash="sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
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
        "num_unfinished": report.num_unfinished,
        "num_groups": report.num_groups,
        "sides": [_side(report, side) for side in (report.team, *report.seats)],
        "has_targets": spec.num_players > 2,
        "information": figure_rows(report, (*_INFORMATION, *OF_PLAYS)),
        "per_game": figure_rows(report, ("score", "score_kept", "bombs", *PER_GAME)),
    }


def _side(report: ConventionReport, side: Side) -> dict[str, object]:
    return {
        "name": side.name,
        "is_team": side is report.team,
        "matrix": matrix_rows(side.matrix, report.actions),
        "hints": hint_rows(side),
    }
