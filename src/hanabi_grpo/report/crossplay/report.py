"""The files of a cross-play: JSON, tables, picture and page."""

from pathlib import Path

from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.summary import Summary, summary_json
from hanabi_grpo.evaluation.crossplay.tables import all_tables, describe, markdown, matrix_note, seat_titles
from hanabi_grpo.report.charts import draw_heat_map
from hanabi_grpo.report.crossplay.page import render_page
from hanabi_grpo.runs.evaluation_result import write_document

JSON, MARKDOWN, PICTURE, PAGE = "cross_play.json", "cross_play.md", "heat_map.png", "cross_play.html"


def write_report(folder: Path, summary: Summary) -> list[Path]:
    """Write everything, finished or not, and return the files.

    Raises:
        SettingsError: A file cannot be written.
    """
    paths = [folder / name for name in (JSON, MARKDOWN, PICTURE, PAGE)]
    write_document(paths[0], summary_json(summary))
    row_title, column_title = seat_titles(summary)
    try:
        paths[1].write_text(markdown_report(summary), encoding="utf-8")
        draw_heat_map(
            paths[2],
            summary.matrix.means.tolist(),
            summary.errors(),
            [visible(label) for label in summary.labels],
            maximum=summary.reachable_max,
            title="\n".join(describe(summary)),
            row_title=row_title,
            column_title=column_title,
            note=matrix_note(summary),
        )
        paths[3].write_text(render_page(summary), encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{error.filename or folder}: cannot be written ({error.strerror}); the cells are kept. Make room and give "
            "the same command again."
        ) from error
    return paths


def markdown_report(summary: Summary) -> str:
    """Return every table as Markdown."""
    head = "# Cross-play\n\n" + "".join(f"- {line}\n" for line in describe(summary))
    return "\n".join([head, *map(markdown, all_tables(summary))])
