"""What messages quote of a value."""

from collections.abc import Iterator

from hanabi_grpo.errors import shown


def test_a_value_is_quoted_as_python_writes_it_up_to_80_characters() -> None:
    for value in (None, 3, -1.5, "x", b"x", [], {}, [1, "a"], {"a": [1, {"b": None}]}, (1, 2), (), True, "\n"):
        assert shown(value) == repr(value)
    assert shown("y" * 1000) == "'" + "y" * 79
    assert shown(list(range(1000))) == repr(list(range(1000)))[:80]
    assert shown({"a" * 300: 1}) == "{'" + "a" * 78


def test_what_is_not_shown_is_not_looked_at() -> None:
    class Row(list[object]):
        seen = 0

        def __iter__(self) -> Iterator[object]:
            for item in super().__iter__():
                Row.seen += 1
                yield item

    nested: object = "leaf"
    for _ in range(20):
        nested = Row([nested] * 100)
    assert len(shown(nested)) == 80
    assert Row.seen < 100_000  # of 100 to the power of 20
