import asyncio
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import env_rows
from bench.__main__ import app
from bench.catalogue import FAMILIES, Family, chosen
from bench.context import Bench, board_of
from bench.row import Row, at_least, at_most
from bench.run import measure_all
from bench.show import as_json, markdown, notes, title
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.settings import load_settings

ROOT = Path(__file__).parents[2]


def _bench(said: list[str], *, quick: bool = True) -> Bench:
    settings = load_settings({"DATASET": str(ROOT / "data/hanabi.laptop.jsonl")}, ROOT / "no.env").settings
    return Bench(settings=settings, config=board_of(settings), say=said.append, quick=quick)


async def _good(bench: Bench) -> list[Row]:
    return [Row(id="R8", name="a | b", arms=("a", "b"), ratios=(0.2,) * bench.pairs, target=at_most(1 / 3), how="so")]


async def _gone(bench: Bench) -> list[Row]:
    raise ServerError("the engine died during the call")


async def _bug(bench: Bench) -> list[Row]:
    raise TypeError("not foreseen")


def _family(id: str, measure: object, *, needs_engine: bool = False) -> Family:
    return Family(id=id, title=id, target=at_least(1), needs_engine=needs_engine, measure=measure)  # type: ignore[arg-type]


def test_a_row_that_fails_says_so_and_the_others_are_measured() -> None:
    said: list[str] = []
    reported: list[str] = []
    families = [
        _family("R1", _gone),
        _family("R2", _bug),
        _family("R3", _good, needs_engine=True),
        _family("R8", _good),
    ]
    result = asyncio.run(
        measure_all(_bench(said), families, use_engine=False, report=lambda row: reported.append(row.id))
    )
    assert result.failed == ["R1", "R2"]
    assert reported == [row.id for row in result.rows] == ["R1", "R2", "R3", "R8"]
    assert result.rows[0].why_not == "failed: ServerError: the engine died during the call"
    assert result.rows[1].why_not.startswith("failed: TypeError: ")
    assert result.rows[2].why_not == "the run was asked not to start one"
    assert result.rows[3].met is True
    # Only what is nobody's known trouble needs its traceback.
    assert sum("Traceback" in line for line in said) == 1
    assert re.fullmatch(r"[\d.]+ [\d.]+ [\d.]+", result.facts["load_after"])


def test_the_table_is_written_for_people_and_for_programs() -> None:
    result = asyncio.run(measure_all(_bench([]), [_family("R8", _good)], use_engine=False, report=lambda row: None))
    text = markdown(result.rows, result.facts)
    assert "| R8 | a \\| b | 0.2 | 0.2 to 0.2 | – | 3 | ≤ 0.333333 | yes |" in text
    assert notes(result.rows) == ["R8: so"]
    assert "3 pairs (quick: fewer than the 5 that a report needs)" in title(result.facts)
    document = json.loads(json.dumps(as_json(result.rows, result.facts, ["R1"]), allow_nan=False))
    assert (document["rows"][0]["median"], document["failed"], document["quick"]) == (0.2, ["R1"], True)


def test_a_full_run_keeps_at_least_five_pairs() -> None:
    assert _bench([], quick=False).pairs >= 5
    assert _bench([]).pairs < 5


def test_every_ratio_of_the_plan_has_a_family_and_can_be_chosen_alone() -> None:
    assert {number for family in FAMILIES for number in family.numbers} == {f"R{number}" for number in range(1, 13)}
    assert [family.id for family in chosen(["R11"])] == ["R8"]
    assert [family.id for family in chosen(["R3"])] == ["R3a", "R3b"]
    assert [family.id for family in chosen(["r3B", "R1"])] == ["R1", "R3b"]
    assert [family.id for family in chosen(["R5b"])] == ["R5"]
    assert chosen([]) == list(FAMILIES)
    for bad in ("R99", "", "engine", "R"):
        with pytest.raises(SettingsError, match="--only"):
            chosen([bad])


def test_the_command_measures_one_ratio_and_writes_both_files(tmp_path: Path) -> None:
    out = tmp_path / "new" / "bench"
    result = CliRunner().invoke(app, ["--quick", "--no-engine", "--only", "R9a", "--out", str(out)])
    assert result.exit_code == 0, result.output
    document = json.loads((out / "bench.json").read_text())
    assert [row["id"] for row in document["rows"]] == ["R9a"]
    assert 0 < document["rows"][0]["median"] < 1
    assert (out / "bench.md").read_text().count("| R9a |") == 1
    assert "R9a" in result.output


@pytest.mark.parametrize("words", [["--only", "R0"], ["--out", "/dev/null/x"]])
def test_the_command_refuses_what_it_cannot_do_before_it_measures(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["--no-engine", *words])
    assert result.exit_code == 2
    assert "error: --o" in result.output


def test_the_guide_has_a_place_for_the_table_and_names_every_row() -> None:
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert text.index("<!-- bench:begin -->") < text.index("<!-- bench:end -->")
    for number in range(1, 13):
        assert re.search(rf"^\| R{number}[a-d]?[, ]", text, re.M), f"R{number}"


def test_the_lag_of_the_real_app_is_measured_in_every_run_of_it() -> None:
    shell = {
        "DATASET": str(ROOT / "data/hanabi.laptop.jsonl"),
        "HANABI_DEALS_PER_STEP": "2",
        "NUM_GENERATIONS": "2",
    }
    settings = load_settings(shell, ROOT / "no.env").settings
    bench = Bench(settings=settings, config=board_of(settings), quick=True, say=lambda text: None)
    [row] = asyncio.run(env_rows.loop_lag(bench))
    assert len(row.ratios) == bench.pairs
    assert row.details["samples_a_run"] > 20
    assert 0 <= row.details["busy_p99"] < 1
