import json
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.ledger import Ledger

KEY: dict[str, Any] = {"lineup": "iggi", "temperature": 1.0, "seats": [("iggi", "iggi")]}


def test_a_second_command_sees_what_the_first_finished(tmp_path: Path) -> None:
    path = tmp_path / "new" / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        assert book.rows == []
        book.add({"seed": 0}, {"seed": 1})
        book.add({"seed": 2})
    with Ledger(path, KEY) as book:
        assert book.rows == [{"seed": 0}, {"seed": 1}, {"seed": 2}]


def test_every_cut_through_a_line_loses_only_that_line(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        book.add({"seed": 0, "games": [[1, 2]]}, {"seed": 1, "games": [[3, 4]]})
    whole = path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        with Ledger(path, KEY) as book:
            assert [row["seed"] for row in book.rows] == [0]
            book.add({"seed": 1, "games": [[3, 4]]})
        assert path.read_bytes() == whole
    for size in range(path.read_bytes().index(b"\n")):
        path.write_bytes(whole[:size])
        with Ledger(path, KEY) as book:
            assert book.rows == []
            book.add({"seed": 0})
        assert json.loads(path.read_text().splitlines()[0])["key"]["lineup"] == "iggi"


def test_other_work_is_never_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        book.add({"seed": 0})
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=r"other work \(temperature: there 1.0, here 0.5\)"):
        Ledger(path, {**KEY, "temperature": 0.5})
    with pytest.raises(SettingsError, match="rotate: there None, here True"):
        Ledger(path, {**KEY, "rotate": True})
    assert path.read_bytes() == before


def test_two_processes_do_not_share_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY), pytest.raises(SettingsError, match="another process is at this work"):
        Ledger(path, KEY)
    with Ledger(path, KEY):
        pass


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    whole = (
        "[]\n",
        "1\n",
        "not json\n",
        '{"seed": 3}\n',
        '{"key": 3}\n',
        "\n",
        "\x00\x00\n",
        "\ud7ff\n",
    )
    for content in (
        *whole,
        '{"key": {"a": 1}}\nnull\n',
        '{"key": {"a": 1}}\n{"seed"\n{"seed": 1}\n',
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(SettingsError, match="not what an interrupted command leaves"):
            Ledger(path, {"a": 1})
        assert path.read_text(encoding="utf-8") == content
    path.unlink()
    with Ledger(path, {"a": 1}):  # the failed attempts hold no lock
        pass


def test_a_path_that_cannot_be_used_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be used"):
        Ledger(tmp_path / "file" / "work.part.jsonl", KEY)
    with pytest.raises(SettingsError, match="cannot be used"):
        Ledger(tmp_path, KEY)
