"""The files of a matrix of players: figures as JSON, the heat map as a picture, and a page."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.report.charts.canvas import save_figure
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.runs.run_folder import save_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "heat_map.png"


def write_matrix_files(
    folder: Path, name: str, document: Mapping[str, Any], picture: "Figure", page: str
) -> list[Path]:
    """Write NAME.json, the picture and NAME.html.

    Args:
        folder: Where to write.
        name: Name of JSON and page, without their endings.
        document: The figures.
        picture: The heat map.
        page: The page.

    Returns:
        The files.

    Raises:
        SettingsError: A file cannot be written.
    """
    json_path = folder / f"{name}.json"
    picture_path = folder / PICTURE
    page_path = folder / f"{name}.html"
    write_document(json_path, document)
    save_figure(picture, picture_path)
    save_text(page_path, page)
    return [json_path, picture_path, page_path]
