"""What is new in a file that another process appends to, replaces, or has cut."""

from pathlib import Path


class LineTail:
    """Reads the whole lines that were added since the last look.

    The last line that was read is compared before reading on: a resumed run replaces `metrics.jsonl` by a shorter one,
    which may have grown beyond the old place by the next look.
    """

    def __init__(self, path: Path) -> None:
        """Start before the first line; the file need not exist."""
        self.path = path
        self._place = 0
        self._mark = b""
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> tuple[list[bytes], bool]:
        """Return the new lines, and whether the file is another one, so that earlier lines count no longer.

        A last line without an end is still being written, and comes when it is whole.

        Raises:
            OSError: The file is there and cannot be read.
        """
        try:
            facts = self.path.stat()
            seen = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if seen == self._seen:
                return [], False
            with self.path.open("rb") as file:
                file.seek(self._place - len(self._mark))
                began_anew = file.read(len(self._mark)) != self._mark
                if began_anew:
                    self._forget()
                    file.seek(0)
                data = file.read()
        except FileNotFoundError:
            had_lines = self._place > 0
            self._forget()
            return [], had_lines
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines()
        if end:
            start = data.rfind(b"\n", 0, end - 1) + 1
            self._mark = data[start:end]
        self._place += end
        self._seen = seen
        return lines, began_anew

    def _forget(self) -> None:
        self._place, self._mark, self._seen = 0, b"", None
