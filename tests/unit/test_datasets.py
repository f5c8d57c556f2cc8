"""Datasets: rows of a file, and the tasks that they stand for: several boards, shares, and the
seed.
"""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hanabi_grpo.envs.hanabi.rules import make_spec, shuffled_deck
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import (
    EXAMPLE_ROW,
    FURTHER_APART,
    MAX_BLOCK,
    block_order,
    further_task,
    load_rows,
    locate,
    num_steps,
    played_setups,
    tasks,
    training_rows,
    write_dataset,
)
from hanabi_grpo.settings import Settings

DATA = Path(__file__).parents[2] / "data"
MESSAGES = [{"role": "user", "content": "Play."}]
SHARES = st.one_of(
    st.integers(1, 12).map(Fraction),
    st.integers(1, 20).map(lambda twentieths: Fraction(twentieths, 20)),
)


def write(folder: Path, *configs: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"messages": MESSAGES, "env_config": config}) + "\n" for config in configs
        )
    )
    return path


def message(path: Path, settings: Settings | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_rows(path, settings or Settings())
    return str(caught.value)


def rows_of(
    folder: Path, *rows: dict[str, Any], settings: Settings | None = None
) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    games = [{"preset": row.get("preset", "laptop"), **row.get("env_config", {})} for row in rows]
    terms = [{key: row[key] for key in row if key not in ("preset", "env_config")} for row in rows]
    lines = [
        {"messages": MESSAGES, "env_config": game, **term}
        for game, term in zip(games, terms, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_rows(path, settings or Settings(tasks_per_step=8, task_seed=0))


REPLIES = ("reward_illegal", "reward_unparsable", "reward_out_of_tokens")


def test_missing_keys_come_from_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path, {"preset": "laptop", "reward_illegal": -1.0})
    settings = Settings(observation="full", max_turns=9)
    assert load_rows(path, settings) == [
        {
            "messages": MESSAGES,
            "env": "hanabi",
            "env_config": {
                "preset": "laptop",
                "memory": "game",
                "players": 2,
                "observation": "full",
                "legal_moves": False,
                "deductions": "possible",
                "reward_score": 1.0,
                "reward_illegal": -1.0,
                "reward_unparsable": -0.5,
                "reward_out_of_tokens": -0.5,
                "bomb_rule": "zero",
                "max_turns": 9,
            },
            "suite": "train",
            "seeds": None,
            "first_seed": 42 * 2**32,
            "share": 1,
        }
    ]


CONFIGS: dict[str, Any] = {
    "did you mean 'laptop'": {"preset": "laptpo"},
    "unknown key 'presset'; did you mean 'preset'?": {"preset": "laptop", "presset": "x"},
    "suite='eval': these tasks are held out for evaluation": {"preset": "laptop", "suite": "eval"},
    "seeds.1=-1: Expected `int` >= 0": {"preset": "laptop", "seeds": [1, -1]},
    "players=3 needs HANABI_PLAYERS=3 in both terminals, or unset DATASET.": {
        "preset": "laptop",
        "players": 3,
    },
    "'share' belongs beside env_config": {"preset": "laptop", "share": 2},
    "env_config='laptop': Expected `object`": "laptop",
}
TERMS = {
    "share=0: Expected `float` >= 0.0001": '"share": 0',
    "all of it: Number out of range": '"share": 1e999',
    "not JSON": '"share": NaN',
}
LINES = {
    "not JSON: JSON is malformed": b"\xff\xfe{}",
    "all of it: Expected `object`, got `array`": b"[" * 100_000,
    "env='../x.py': an environment is named by a word": b'{"env": "../x.py"}',
    "messages: this field is missing": b'{"env_config": {}}',
    "messages.0.content: this field is missing": b'{"messages": [{"role": "user"}]}',
    "'preset' belongs into env_config: a row may hold messages, env, env_config, share": b'{"preset": "laptop"}',
}


def test_a_bad_row_is_refused_with_file_line_problem_and_a_right_row(tmp_path: Path) -> None:
    lines = dict(LINES)
    for problem, config in CONFIGS.items():
        lines[problem] = json.dumps({"messages": MESSAGES, "env_config": config}).encode()
    for problem, typed in TERMS.items():
        row = json.dumps({"messages": MESSAGES, "env_config": {"preset": "laptop"}})
        lines[problem] = f"{row[:-1]}, {typed}}}".encode()
    path = tmp_path / "rows.jsonl"
    for problem, line in lines.items():
        path.write_bytes(b"\n\n" + line + b"\n")
        text = message(path)
        assert text.startswith(f"{path} line 3: ") and problem in text, problem
        assert text.endswith(f"Example of a row: {EXAMPLE_ROW}")


def test_a_key_with_another_value_in_the_environment_is_an_error_and_with_the_same_value_is_not(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, {"preset": "laptop", "bomb_rule": "keep"})
    expected = "env_config bomb_rule='keep', but HANABI_BOMB_RULE='zero' is set as well"
    assert expected in message(path, Settings(bomb_rule="zero"))
    assert load_rows(path, Settings(bomb_rule="keep"))[0]["env_config"]["bomb_rule"] == "keep"
    assert load_rows(path, Settings())[0]["env_config"]["bomb_rule"] == "keep"


def test_a_missing_or_empty_file_says_how_to_make_one(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    assert f"hanabi-grpo dataset --preset laptop --out {missing}" in message(missing)
    (tmp_path / "empty.jsonl").write_text("\n")
    assert message(tmp_path / "empty.jsonl").startswith(f"{tmp_path / 'empty.jsonl'}: no rows.")
    (tmp_path / "example.jsonl").write_text(EXAMPLE_ROW)
    assert load_rows(tmp_path / "example.jsonl", Settings())[0]["suite"] == "train"


@pytest.mark.parametrize(
    ("name", "preset"), [("hanabi.grpo.jsonl", "full"), ("hanabi.laptop.jsonl", "laptop")]
)
def test_the_files_of_the_project_are_what_the_command_writes(
    tmp_path: Path, name: str, preset: str
) -> None:
    line = write_dataset(
        tmp_path / name, [dataset_row(preset, players=None, suite="train", num_tasks=0)]
    )
    assert line == preset
    assert (DATA / name).read_text() == (tmp_path / name).read_text()
    assert [row["seeds"] for row in load_rows(DATA / name, Settings())] == [None]


def test_a_row_holds_a_fixed_list_and_what_could_not_be_trained_on_is_refused() -> None:
    row = dataset_row("mini", players=3, suite="train", num_tasks=2)
    assert row["env_config"] == {"preset": "mini", "suite": "train", "players": 3, "seeds": [0, 1]}
    right: dict[str, Any] = {"preset": "laptop", "suite": "train", "num_tasks": 0}
    bad = {
        "preset": ("labtop", "did you mean 'laptop'"),
        "suite": ("eval", "held out"),
        "num_tasks": (-1, "-1"),
        "env": ("chess", "no such environment"),
    }
    for name, (value, problem) in bad.items():
        with pytest.raises(SettingsError, match=problem):
            dataset_row(**{**right, name: value})


def test_rows_of_several_environments_stand_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    rows = [
        dataset_row(name, env=name, suite="train", num_tasks=0)
        for name in ("tic_tac_toe", "kuhn_poker")
    ]
    write_dataset(path, rows)
    hanabi = dataset_row(
        "marshal-mini", players=2, observation="compact", suite="train", num_tasks=0, share=2
    )
    assert (
        write_dataset(path, [hanabi], add=True)
        == "tic_tac_toe 25 %, kuhn_poker 25 %, marshal-mini 50 %"
    )
    found = load_rows(path, Settings(device="cpu"))
    assert [row["env"] for row in found] == ["tic_tac_toe", "kuhn_poker", "hanabi"]
    assert [row["env_config"].get("style") for row in found] == ["compact", "compact", None]


def test_rows_of_another_environment_take_what_they_leave_open_from_its_preset(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kuhn.jsonl"
    row = dataset_row("kuhn", env="kuhn", suite="train", num_tasks=0)
    assert write_dataset(path, [row]) == "kuhn"
    config = {"preset": "kuhn", "memory": "game", **dict.fromkeys(REPLIES, -0.5)}
    for settings in (Settings(), Settings(env="kuhn")):
        [found] = load_rows(path, settings)
        assert (found["env"], found["env_config"], found["messages"][0]["content"]) == (
            "kuhn",
            config,
            "Play kuhn.",
        )
        assert tasks([found], 3, 1)[0]["env"] == "kuhn"
        assert played_setups([found])[0].spec.payoff == "zero_sum"
    assert training_rows(Settings(env="kuhn"))[0]["env_config"] == config
    path.write_text(json.dumps({**row, "env_config": {"preset": "kuhn", "players": 2}}))
    assert "unknown key 'players'; env_config may hold preset, memory, reward_illegal" in message(
        path
    )
    path.write_text(json.dumps(row))
    assert "env='kuhn' has 2 players, but HANABI_PLAYERS=3; set HANABI_ENV=kuhn" in message(
        path, Settings(players=3)
    )


@examples(deadline=None)
@given(st.lists(SHARES, min_size=1, max_size=5), st.integers(0, 300), st.integers(1, 40))
def test_any_stretch_of_deals_has_nearly_the_shares_and_a_whole_block_has_them_exactly(
    shares: list[Fraction], start: int, length: int
) -> None:
    rows = tuple(shares)
    block = len(block_order(rows))
    counts = Counter(locate(rows, task)[0] for task in range(start, start + block))
    total = sum(shares)
    assert all(counts[row] == block * share / total for row, share in enumerate(shares))
    part = Counter(locate(rows, task)[0] for task in range(start, start + length))
    assert all(
        abs(part[row] - length * share / total) <= len(shares) for row, share in enumerate(shares)
    )


def test_shares_without_a_short_common_block_are_refused_and_the_finest_allowed_is_not(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        SettingsError,
        match=r"rows\.jsonl: shares 0\.123457, 1: .* in 1123457 tasks, allowed are 10000",
    ):
        rows_of(tmp_path, {"share": 0.123457}, {"share": 1})
    rows = rows_of(tmp_path, {"share": 0.9999}, {"preset": "mini", "share": 0.0001})
    assert Counter(task["env_config"]["preset"] for task in tasks(rows, 123, MAX_BLOCK)) == {
        "laptop": 9999,
        "mini": 1,
    }


def test_an_epoch_with_shares_ends_when_every_row_has_played_all_its_seeds(tmp_path: Path) -> None:
    def steps(*rows: dict[str, Any]) -> int:
        return num_steps(Settings(num_train_epochs=1.0, tasks_per_step=1), rows_of(tmp_path, *rows))

    seeds = {"env_config": {"seeds": list(range(30))}}
    assert steps({**seeds}, {**seeds}) == 60
    assert steps({**seeds, "share": 3}, {**seeds, "share": 1}) == 120
    assert steps({**seeds, "share": 3}, {"env_config": {"seeds": list(range(10))}}) == 40


def test_the_seed_of_a_run_chooses_its_fresh_deals_and_no_two_seeds_share_one(
    tmp_path: Path,
) -> None:
    def seeds(**given: int) -> list[int]:
        rows = rows_of(tmp_path, {}, settings=Settings(**given))  # type: ignore[arg-type]
        return [task["seed"] for task in tasks(rows, 0, 50)]

    assert seeds(task_seed=0) == list(range(50))
    assert seeds(seed=7) == seeds(seed=3, task_seed=7) == [7 * 2**32 + task for task in range(50)]
    assert seeds() == seeds(seed=42)
    fixed = rows_of(tmp_path, {"env_config": {"seeds": [4, 2]}}, settings=Settings(seed=7))
    assert [task["seed"] for task in tasks(fixed, 0, 4)] == [4, 2, 4, 2]
    assert set(seeds(seed=1)).isdisjoint(seeds(seed=2))
    shuffled_deck(make_spec("laptop"), "train", seeds(seed=2**31 - 1)[-1])
    last = rows_of(tmp_path, {}, settings=Settings(seed=2**31 - 1))
    assert tasks(last, 2**32 - 1, 1)[0]["seed"] == 2**63 - 1
    with pytest.raises(
        SettingsError, match="a run has 4294967296 fresh tasks; set another HANABI_TASK_SEED"
    ):
        tasks(last, 2**32, 1)


def test_a_further_deal_is_of_the_same_row_and_no_deal_that_the_run_has_already(
    tmp_path: Path,
) -> None:
    rows = rows_of(
        tmp_path, {"share": 3}, {"preset": "marshal-mini", "env_config": {"seeds": [5, 6, 7]}}
    )
    own = tasks(rows, 0, 40)
    others = [further_task(rows, number, round_) for round_ in (1, 2, 15) for number in range(40)]
    assert [task["task"] for task in others[40:80]] == [
        2 * FURTHER_APART + number for number in range(40)
    ]
    assert [task["env_config"] for task in others] == [task["env_config"] for task in own] * 3
    fresh = [task["seed"] for task in (*own, *others) if task["env_config"]["preset"] == "laptop"]
    assert len(set(fresh)) == len(fresh) == 120 and max(fresh) < 2**32
    # Of a row's seeds each of the others, never the task's own.
    drawn = zip(own * 3, others, strict=True)
    pairs = {
        (one["seed"], other["seed"])
        for one, other in drawn
        if one["env_config"]["preset"] == "marshal-mini"
    }
    assert pairs == {(5, 6), (5, 7), (6, 5), (6, 7), (7, 5), (7, 6)}
    assert further_task(rows_of(tmp_path, {"env_config": {"seeds": [9]}}), 0, 1)["seed"] == 9
