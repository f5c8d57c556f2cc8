"""Finished pieces of a long job: kept over interruptions, never mixed with another job's."""

import json
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.ledger import Ledger

KEY: dict[str, Any] = {"lineup": "iggi", "temperature": 1.0, "seats": [("iggi", "iggi")]}
FIRST_ROW = {"seed": 0, "games": [[1, 2]]}
SECOND_ROW = {"seed": 1, "games": [[3, 4]]}


def test_a_second_command_sees_what_the_first_finished(tmp_path: Path) -> None:
    path = tmp_path / "new" / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        assert book.rows == []
        book.add({"seed": 0}, {"seed": 1})
        book.add({"seed": 2})
    with Ledger(path, KEY) as book:
        assert book.rows == [{"seed": 0}, {"seed": 1}, {"seed": 2}]


def test_every_cut_through_a_row_loses_only_that_row(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        book.add(FIRST_ROW, SECOND_ROW)
    whole = path.read_bytes()
    last_line = whole[:-1].rfind(b"\n") + 1
    for size in range(last_line, len(whole)):
        path.write_bytes(whole[:size])
        with Ledger(path, KEY) as book:
            assert book.rows == [FIRST_ROW]
            book.add(SECOND_ROW)
        assert path.read_bytes() == whole


def test_every_cut_through_the_key_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        book.add(FIRST_ROW)
    whole = path.read_bytes()
    for size in range(whole.index(b"\n")):
        path.write_bytes(whole[:size])
        with Ledger(path, KEY) as book:
            assert book.rows == []
            book.add({"seed": 0})
        first_line = json.loads(path.read_text().splitlines()[0])
        assert first_line["key"]["lineup"] == "iggi"


def test_a_job_that_was_stopped_before_its_first_piece_blocks_no_other(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY):
        pass
    other = {**KEY, "temperature": 0.5}
    with Ledger(path, other) as book:
        book.add({"seed": 0})
    with Ledger(path, other) as book:
        assert book.rows == [{"seed": 0}]


def test_other_work_is_never_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY) as book:
        book.add({"seed": 0})
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=r"different job \(temperature: there 1.0, here 0.5\)"):
        Ledger(path, {**KEY, "temperature": 0.5})
    with pytest.raises(SettingsError, match="rotate: there None, here True"):
        Ledger(path, {**KEY, "rotate": True})
    assert path.read_bytes() == before


def test_two_processes_do_not_share_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "work.part.jsonl"
    with Ledger(path, KEY), pytest.raises(SettingsError, match="another process is writing to it"):
        Ledger(path, KEY)
    with Ledger(path, KEY):
        pass


@pytest.mark.parametrize(
    "content",
    [
        "[]\n",
        "1\n",
        "not json\n",
        '{"seed": 3}\n',
        '{"key": 3}\n',
        "\n",
        "\x00\x00\n",
        "\ud7ff\n",
        '{"key": {"a": 1}}\nnull\n',
        '{"key": {"a": 1}}\n{"seed"\n{"seed": 1}\n',
    ],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "work.part.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match="not a file of an interrupted command"):
        Ledger(path, {"a": 1})
    assert path.read_text(encoding="utf-8") == content
    path.unlink()
    # The failed attempt holds no lock.
    with Ledger(path, {"a": 1}):
        pass


def test_a_path_that_cannot_be_used_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "work.part.jsonl", tmp_path):
        with pytest.raises(SettingsError, match="cannot be used"):
            Ledger(path, KEY)
