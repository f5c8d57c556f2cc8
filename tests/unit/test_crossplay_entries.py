from pathlib import Path

import pytest

from crossplay_parts import save_checkpoint
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.entries import (
    Entry,
    cell_line_up,
    parse_entries,
    swap_line_up,
    swap_orders,
    unit_of,
)
from hanabi_grpo.settings.refs import Role, ScriptRef, parse_checkpoint


def test_entries_are_words_with_or_without_a_name() -> None:
    entries = parse_entries(["iggi", "mine=piers", " player_1@latest ", "served"], 2)
    assert [(entry.label, entry.word) for entry in entries] == [
        ("iggi", "iggi"),
        ("mine", "piers"),
        ("player_1@latest", "player_1@latest"),
        ("served", "served"),
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "0 entries: cross-play needs 2"),
        (["iggi"], "1 entries: cross-play needs 2"),
        (["iggi"] * 65, "65 entries"),
        (["iggi", "iggy"], "Did you mean 'iggi'"),
        (["iggi", "piers,outer"], "an entry is one word"),
        (["iggi", "human"], "hanabi-grpo play"),
        (["iggi", "iggi"], "'iggi' is there 2 times"),
        (["iggi", "a=iggi"], "entry 'iggi' is there 2 times; give each entry once"),
        (["a=iggi", "a=piers"], "name 'a' is there 2 times; name them apart"),
        (["iggi", "=piers"], "a name has 1 to 80"),
        (["iggi", "a\x1bb=piers"], "a name has 1 to 80"),
        (["iggi", "x" * 81 + "=piers"], "a name has 1 to 80"),
        (["iggi", "nowhere/at/all"], "no such folder"),
        (["iggi", ""], "unknown"),
        (["iggi", "a="], "unknown"),
    ],
)
def test_what_is_no_list_of_entries_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_entries(texts, 2)


def test_a_run_stands_for_the_checkpoint_that_is_newest_now(tmp_path: Path) -> None:
    run = tmp_path / "lr=3e-3"
    save_checkpoint(run, 10, [0.1, 0.2])
    newest = save_checkpoint(run, 20, [0.3, 0.4])
    entries = parse_entries([str(run), f"{run}:player_1", f"old={run}/checkpoint-10", "iggi"], 2)
    assert [(entry.label, entry.word) for entry in entries] == [
        ("lr=3e-3/checkpoint-20", str(newest)),
        ("lr=3e-3/checkpoint-20:player_1", f"{newest}:player_1"),
        ("old", f"{run}/checkpoint-10"),
        ("iggi", "iggi"),
    ]
    assert [entry.fills_seats for entry in entries] == [True, False, True, False]
    assert [entry.run for entry in entries] == [run, run, run, None]


def test_a_cell_seats_the_row_first_and_the_column_everywhere_else() -> None:
    row, column = parse_entries(["iggi", "piers"], 4)
    assert cell_line_up(row, column, 4).words == ("iggi", "piers", "piers", "piers")
    assert cell_line_up(column, column, 2).words == ("piers", "piers")


def test_swapped_seats_hold_the_entrys_own_adapters() -> None:
    assert swap_orders(2) == [(1, 0), (0, 0), (1, 1)]
    assert swap_orders(4) == [(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)]
    served = Entry(label="served", ref=Role.SERVED)
    assert swap_line_up(served, (1, 0)).words == ("player_1@latest", "player_0@latest")
    saved = Entry(label="a", ref=parse_checkpoint("runs/a/checkpoint-5"))
    assert swap_line_up(saved, (1, 1)).words == ("runs/a/checkpoint-5:player_1",) * 2


def test_the_error_is_over_training_seeds_only_where_every_entry_is_a_run_of_its_own() -> None:
    words = ("a/checkpoint-5", "a/checkpoint-9", "b/checkpoint-5")
    a, later_a, b = (Entry(label=word, ref=parse_checkpoint(f"runs/{word}")) for word in words)
    bot = Entry(label="iggi", ref=ScriptRef(name="iggi"))
    assert unit_of([a, b]) == "training seeds"
    assert unit_of([a, later_a, b]) == unit_of([a, b, bot]) == "entries"
