"""What is new in a run folder since it was last looked at."""

from pathlib import Path
from typing import Any

from hanabi_grpo.runs.history import read_row
from hanabi_grpo.runs.manifest import CHECKPOINT_NAME

_MOST_BYTES = 4 << 20
"""Read at once; the rest comes with the next look."""


class RunReader:
    """Reads a run folder that another process writes.

    Attributes:
        rows: Every row so far, by step; of a step that is there twice, the last.
    """

    def __init__(self, run_folder: Path, from_step: int) -> None:
        """Start after a step: its rows are known, not new."""
        self.run_folder, self.from_step = run_folder, from_step
        self.rows: dict[int, dict[str, Any]] = {}
        self._place = 0
        self._new: list[dict[str, Any]] = []

    def look(self) -> bool:
        """Read what was written since the last call; returns whether there was a whole line, which `take` may hold.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            with (self.run_folder / "metrics.jsonl").open("rb") as file:
                file.seek(self._place)
                data = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return False
        # A line without an end is still being written.
        end = data.rfind(b"\n") + 1
        self._place += end
        for row in map(read_row, data[:end].splitlines()):
            if row is not None:
                self.rows[row["step"]] = row
                if row["step"] > self.from_step:
                    self._new.append(row)
        return end > 0

    def take(self) -> list[dict[str, Any]]:
        """Return the rows after `from_step` that were not taken before, as they were written."""
        taken, self._new = self._new, []
        return taken

    def history(self) -> list[dict[str, Any]]:
        """Return every row so far, oldest first."""
        return [self.rows[step] for step in sorted(self.rows)]

    def checkpoints(self, *, all_of_them: bool = False) -> list[tuple[int, Path]]:
        """Return the checkpoints after `from_step`, or all, oldest first; they appear by a rename, so each is whole.

        Raises:
            OSError: The folder cannot be read.
        """
        found = []
        for folder in self.run_folder.iterdir():
            match = CHECKPOINT_NAME.fullmatch(folder.name)
            if match and (all_of_them or int(match[1]) > self.from_step):
                found.append((int(match[1]), folder))
        return sorted(found)
