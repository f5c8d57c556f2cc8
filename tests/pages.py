"""Pages read back by tests."""

from html.parser import HTMLParser

_VOID = {"meta", "br", "line", "rect", "img", "input"}


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed where it should
    be.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        # These may be left open.
        while self._open[-1] in {"dt", "dd", "li"} and self._open[-1] != tag:
            self._open.pop()
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
