"""Pages read back by tests."""

from html.parser import HTMLParser

_VOID_TAGS = {"meta", "br", "line", "rect", "img", "input"}
"""Elements without an end tag."""
_OPTIONAL_END_TAGS = {"dt", "dd", "li"}
"""Elements that may be left open."""


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed in its place."""

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
        if tag not in _VOID_TAGS:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        while self._open[-1] in _OPTIONAL_END_TAGS and self._open[-1] != tag:
            self._open.pop()
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
