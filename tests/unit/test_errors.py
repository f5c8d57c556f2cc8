"""What messages quote of a value."""

from hanabi_grpo.errors import shown


def test_a_value_is_quoted_as_python_writes_it_up_to_80_characters() -> None:
    for value in (
        None,
        3,
        -1.5,
        "x",
        b"x",
        [],
        {},
        [1, "a"],
        {"a": [1, {"b": None}]},
        (1, 2),
        (),
        True,
        "\n",
    ):
        assert shown(value) == repr(value)
    assert shown("y" * 1000) == "'" + "y" * 79
    assert shown(list(range(1000))) == repr(list(range(1000)))[:80]
    assert shown({"a" * 300: 1}) == "{'" + "a" * 78


def test_what_is_not_shown_is_not_looked_at() -> None:
    nested: object = "leaf"
    for _ in range(20):
        nested = [nested] * 100  # 100 to the power of 20 leaves
    assert len(shown(nested)) == 80
