"""`hanabi-grpo dataset` with several boards, steps and --add."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.rollout.datasets import load_rows, mix_line
from hanabi_grpo.settings import Settings


def run(*words: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["dataset", *map(str, words)])
    return result.exit_code, result.output


def refused(*words: object) -> str:
    code, output = run(*words)
    assert code == 2
    return output


def test_boards_with_shares_make_one_file(tmp_path: Path) -> None:
    out = tmp_path / "mix.jsonl"
    code, output = run("--preset", "laptop=3", "--preset", "marshal-mini", "--out", out)
    assert (code, output) == (
        0,
        f"wrote {out} (laptop 75 %, marshal-mini 25 %); train on it with DATASET={out}\n",
    )
    assert out.read_text().splitlines()[0].endswith('"env_config": {"preset": "laptop", "suite": "train"}, "share": 3}')
    assert [row["share"] for row in load_rows(out, Settings())] == [3, 1]


def test_a_curriculum_is_made_by_adding_rows(tmp_path: Path) -> None:
    out = tmp_path / "mix.jsonl"
    assert run("--preset", "laptop", "--until-step", 100, "--out", out)[1].startswith(
        f"wrote {out} (steps 1 to 100: laptop);"
    )
    options = ("--preset", "marshal-mini=0.75", "--preset", "laptop=0.25", "--from-step", 101, "--out", out)
    assert "exists already; choose another name, remove it, or put the rows behind its own with --add" in refused(
        *options
    )
    code, output = run(*options, "--add")
    assert code == 0
    expected = "steps 1 to 100: laptop; from step 101: marshal-mini 75 %, laptop 25 %"
    assert f"({expected})" in output
    settings = Settings()
    assert mix_line(load_rows(out, settings), settings) == expected


def test_rows_are_added_behind_a_last_line_without_an_end(tmp_path: Path) -> None:
    out = tmp_path / "mix.jsonl"
    run("--preset", "laptop", "--out", out)
    out.write_bytes(out.read_bytes().rstrip(b"\n"))
    run("--preset", "mini", "--observation", "full", "--out", out, "--add")
    rows = load_rows(out, Settings())
    assert [(row["env_config"]["preset"], row["env_config"]["observation"]) for row in rows] == [
        ("laptop", "compact"),
        ("mini", "full"),
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--preset", "laptop", "--from-step", 50), "no row plays in steps 1 to 49"),
        (("--preset", "laptop=0"), "--preset 'laptop=0': a share is a number from 0.0001 to 10000"),
        (("--preset", "laptop=nan"), "--preset 'laptop=nan': a share is"),
        (("--preset", "laptop=much"), "--preset 'laptop=much': a share is"),
        (("--preset", "laptop="), "--preset 'laptop=': a share is"),
        (("--preset", "labtop=3"), "did you mean 'laptop'"),
        (("--preset", "laptop", "--until-step", 0), "until_step=0: Expected `int` >= 1"),
        (("--preset", "laptop", "--observation", "long"), "observation='long'"),
        (("--preset", "mini", "--players", 3, "--preset", "laptop"), "preset 'laptop' is for 2 players"),
    ],
)
def test_what_could_not_be_trained_on_is_refused_and_nothing_is_written(
    tmp_path: Path, words: tuple[object, ...], problem: str
) -> None:
    out = tmp_path / "new" / "mix.jsonl"
    assert problem in refused(*words, "--out", out)
    assert not out.exists()
