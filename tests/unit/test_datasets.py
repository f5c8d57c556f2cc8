"""Datasets: rows of a file, and the tasks that they stand for: boards, shares, and the seed."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from hanabi_grpo.envs.hanabi.rules import make_spec, shuffled_deck
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.chosen import game_setup
from hanabi_grpo.rollout.dataset_rows import DatasetRow, TaskRow, dataset_row, parse_row
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
from hanabi_grpo.rollout.messages import TaskRequest
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.sft.tiny_model.recipe import Recipe

DATA = Path(__file__).parents[2] / "data"
MESSAGES = [{"role": "user", "content": "Play."}]
SHARES = st.one_of(
    st.integers(1, 12).map(Fraction),
    st.integers(1, 20).map(lambda twentieths: Fraction(twentieths, 20)),
)


def write_lines(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_configs(folder: Path, *configs: Any) -> Path:
    """Write a row for each env_config."""
    lines = [{"messages": MESSAGES, "env_config": config} for config in configs]
    return write_lines(folder / "rows.jsonl", *lines)


def message(path: Path, settings: Settings | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_rows(path, settings or Settings())
    return str(caught.value)


def rows_of(
    folder: Path, *rows: dict[str, Any], settings: Settings | None = None
) -> list[DatasetRow]:
    """Write and load rows.

    Args:
        folder: Where the file is written.
        rows: Each may have a "preset" (else "laptop"), a "share", and more of its "env_config".
        settings: What they leave open; by default 8 tasks a step and seeds from 0.
    """
    lines = []
    for row in rows:
        env_config = {"preset": row.get("preset", "laptop"), **row.get("env_config", {})}
        line = {"messages": MESSAGES, "env_config": env_config}
        if "share" in row:
            line["share"] = row["share"]
        lines.append(line)
    path = write_lines(folder / "rows.jsonl", *lines)
    return load_rows(path, settings or Settings(tasks_per_step=8, task_seed=0))


# What a row means


def test_missing_keys_come_from_the_settings(tmp_path: Path) -> None:
    path = write_configs(tmp_path, {"preset": "laptop", "reward_illegal": -1.0})
    settings = Settings(observation="full", max_turns=9)
    assert load_rows(path, settings) == [
        DatasetRow(
            messages=MESSAGES,
            env="hanabi",
            env_config={
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
            suite="train",
            seeds=None,
            first_seed=42 * 2**32,
            share=Fraction(1),
        )
    ]


def test_a_task_says_to_the_server_what_is_played_and_by_whom() -> None:
    task = TaskRow(
        messages=MESSAGES,
        env="kuhn",
        env_config={"preset": "kuhn"},
        suite="train",
        seed=7,
        number=3,
    )
    request = {"env": "kuhn", "env_config": {"preset": "kuhn"}, "suite": "train", "seed": 7}
    assert task.request() == request
    assert task.request(seats=("iggi", "player_1@2")) == {
        **request,
        "seats": ["iggi", "player_1@2"],
    }


CONFIGS: dict[str, Any] = {
    "did you mean 'laptop'": {"preset": "laptpo"},
    "unknown key 'presset'; did you mean 'preset'?": {"preset": "laptop", "presset": "x"},
    "suite='eval': these tasks are held out for evaluation": {"preset": "laptop", "suite": "eval"},
    "suite='my train': the name of a suite has 1 to 64 letters, digits, '_', '.' and '-'": {
        "preset": "laptop",
        "suite": "my train",
    },
    "suite='': the name of a suite has": {"preset": "laptop", "suite": ""},
    "seeds.1=-1: Expected `int` >= 0": {"preset": "laptop", "seeds": [1, -1]},
    "players=3 needs HANABI_PLAYERS=3 in both terminals, or unset DATASET.": {
        "preset": "laptop",
        "players": 3,
    },
    "'share' belongs next to env_config": {"preset": "laptop", "share": 2},
    "env_config='laptop': Expected `object`": "laptop",
}
"""Problem to the env_config that has it."""
SHARE_TEXTS = {
    "share=0: Expected `float` >= 0.0001": '"share": 0',
    "all of it: Number out of range": '"share": 1e999',
    "not JSON": '"share": NaN',
}
"""Problem to the share, as JSON, that has it."""
LINES = {
    "not JSON: JSON is malformed": b"\xff\xfe{}",
    "all of it: Expected `object`, got `array`": b"[" * 100_000,
    "env='../x.py': an environment name consists of lower-case letters": b'{"env": "../x.py"}',
    "messages: this field is missing": b'{"env_config": {}}',
    "messages.0.content: this field is missing": b'{"messages": [{"role": "user"}]}',
    "'preset' belongs in env_config: the keys of a row are messages, env, env_config, share": (
        b'{"preset": "laptop"}'
    ),
}
"""Problem to the whole line that has it."""


def test_a_suite_that_a_row_may_name_is_one_that_the_server_plays() -> None:
    for suite in ("train", "split-train", "2.new_ones", "x" * 64):
        config = {"preset": "laptop", "suite": suite}
        line = json.dumps({"messages": MESSAGES, "env_config": config}).encode()
        request = parse_row(line, Settings()).task(0, 7).request()
        assert msgspec.convert(request, TaskRequest).suite == suite


def bad_lines() -> dict[str, bytes]:
    """Return every bad line by its problem."""
    lines = dict(LINES)
    for problem, config in CONFIGS.items():
        lines[problem] = json.dumps({"messages": MESSAGES, "env_config": config}).encode()
    for problem, share in SHARE_TEXTS.items():
        row = json.dumps({"messages": MESSAGES, "env_config": {"preset": "laptop"}})
        lines[problem] = f"{row[:-1]}, {share}}}".encode()
    return lines


@pytest.mark.parametrize(("problem", "line"), bad_lines().items(), ids=range(len(bad_lines())))
def test_a_bad_row_is_refused_with_file_line_problem_and_a_right_row(
    problem: str, line: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n\n" + line + b"\n")
    text = message(path)
    assert text.startswith(f"{path} line 3: ")
    assert problem in text
    assert text.endswith(f"Example of a row: {EXAMPLE_ROW}")


def test_a_key_with_another_value_in_the_environment_is_an_error_and_with_the_same_value_is_not(
    tmp_path: Path,
) -> None:
    path = write_configs(tmp_path, {"preset": "laptop", "bomb_rule": "keep"})
    expected = "env_config bomb_rule='keep', but HANABI_BOMB_RULE='zero' is set as well"
    assert expected in message(path, Settings(bomb_rule="zero"))
    for settings in (Settings(bomb_rule="keep"), Settings()):
        [row] = load_rows(path, settings)
        assert row.env_config["bomb_rule"] == "keep"


def test_a_missing_or_empty_file_says_how_to_make_one(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    assert f"hanabi-grpo dataset --preset laptop --out {missing}" in message(missing)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert message(empty).startswith(f"{empty}: no rows.")
    example = tmp_path / "example.jsonl"
    example.write_text(EXAMPLE_ROW)
    [row] = load_rows(example, Settings())
    assert row.suite == "train"


# Rows that are made


@pytest.mark.parametrize(
    ("name", "preset"), [("hanabi.grpo.jsonl", "full"), ("hanabi.laptop.jsonl", "laptop")]
)
def test_the_files_of_the_project_are_what_the_command_writes(
    tmp_path: Path, name: str, preset: str
) -> None:
    row = dataset_row(preset, players=None, suite="train", num_tasks=0)
    assert write_dataset(tmp_path / name, [row]) == preset
    assert (DATA / name).read_text() == (tmp_path / name).read_text()
    assert [row.seeds for row in load_rows(DATA / name, Settings())] == [None]


def test_a_row_holds_a_fixed_list_of_tasks() -> None:
    row = dataset_row("mini", players=3, suite="train", num_tasks=2)
    assert row["env_config"] == {"preset": "mini", "suite": "train", "players": 3, "seeds": [0, 1]}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("preset", "labtop", "did you mean 'laptop'"),
        ("suite", "eval", "held out"),
        ("num_tasks", -1, "-1"),
        ("env", "chess", "no such environment"),
    ],
)
def test_a_row_that_could_not_be_trained_on_is_not_made(
    name: str, value: Any, problem: str
) -> None:
    arguments = {"preset": "laptop", "suite": "train", "num_tasks": 0}
    arguments[name] = value
    with pytest.raises(SettingsError, match=problem):
        dataset_row(**arguments)


def test_rows_of_several_environments_stand_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    rows = [
        dataset_row("tic_tac_toe", env="tic_tac_toe", suite="train", num_tasks=0),
        dataset_row("kuhn_poker", env="kuhn_poker", suite="train", num_tasks=0),
    ]
    write_dataset(path, rows)
    hanabi = dataset_row(
        "marshal-mini", players=2, observation="compact", suite="train", num_tasks=0, share=2
    )
    mix = write_dataset(path, [hanabi], add=True)
    assert mix == "tic_tac_toe 25 %, kuhn_poker 25 %, marshal-mini 50 %"
    loaded = load_rows(path, Settings(device="cpu"))
    assert [row.env for row in loaded] == ["tic_tac_toe", "kuhn_poker", "hanabi"]
    assert [row.env_config.get("style") for row in loaded] == ["compact", "compact", None]


def test_rows_of_another_environment_take_what_they_leave_open_from_its_preset(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kuhn.jsonl"
    line = dataset_row("kuhn", env="kuhn", suite="train", num_tasks=0)
    assert write_dataset(path, [line]) == "kuhn"
    config = {
        "preset": "kuhn",
        "memory": "game",
        "reward_illegal": -0.5,
        "reward_unparsable": -0.5,
        "reward_out_of_tokens": -0.5,
    }
    for settings in (Settings(), Settings(env="kuhn")):
        [row] = load_rows(path, settings)
        assert row.env == "kuhn"
        assert row.env_config == config
        assert row.messages[0]["content"] == "Play kuhn."
        assert tasks([row], 3, 1)[0].env == "kuhn"
        assert played_setups([row])[0].spec.payoff == "zero_sum"
    assert training_rows(Settings(env="kuhn"))[0].env_config == config


def test_an_unknown_preset_of_another_environment_is_refused(tmp_path: Path) -> None:
    line = dataset_row("sokoban", env="sokoban", suite="train", num_tasks=0)
    path = write_lines(tmp_path / "rows.jsonl", {**line, "env_config": {"preset": "sokoban-3"}})
    assert "preset 'sokoban-3': sokoban has no such preset" in message(path, Settings(players=1))


def test_an_unknown_preset_is_refused_in_the_same_words_everywhere(tmp_path: Path) -> None:
    words = "sokoban has no such preset; did you mean 'sokoban-2'? allowed are sokoban, sokoban-2."
    with pytest.raises(SettingsError) as caught:
        load_settings({"HANABI_ENV": "sokoban", "HANABI_PRESET": "sokoban-3"}, tmp_path / ".env")
    assert str(caught.value) == f"HANABI_PRESET='sokoban-3': {words}"
    with pytest.raises(SettingsError) as caught:
        Recipe.of("sokoban", presets=("sokoban-3",)).setups()
    assert str(caught.value) == f"--preset sokoban-3: {words}"
    with pytest.raises(SettingsError) as caught:
        game_setup(Settings(), "sokoban", "sokoban-3", None)
    assert str(caught.value) == f"--preset 'sokoban-3': {words}"
    line = dataset_row("sokoban", env="sokoban", suite="train", num_tasks=0)
    path = write_lines(tmp_path / "rows.jsonl", {**line, "env_config": {"preset": "sokoban-3"}})
    assert f"preset 'sokoban-3': {words}" in message(path, Settings(players=1))


def test_rows_of_one_game_have_the_same_rewards(tmp_path: Path) -> None:
    line = dataset_row("laptop", suite="train", num_tasks=0)
    other = {**line, "env_config": {"preset": "laptop", "reward_score": 10.0}}
    path = write_lines(tmp_path / "rows.jsonl", line, other)
    assert "rows of one game have reward_score=1 and reward_score=10" in message(path)


def test_rows_of_one_game_that_pay_for_other_things_are_refused_though_they_pay_as_much(
    tmp_path: Path,
) -> None:
    line = dataset_row("vote", env="vote", suite="train", num_tasks=0)
    of_the_team = {"preset": "vote", "reward_correct": 0.0, "reward_team": 1.0}
    path = write_lines(tmp_path / "rows.jsonl", line, {**line, "env_config": of_the_team})
    expected = "rows of one game have reward_correct=1 and reward_correct=0"
    assert expected in message(path, Settings(players=3))


def test_rows_of_another_environment_are_checked_too(tmp_path: Path) -> None:
    line = dataset_row("kuhn", env="kuhn", suite="train", num_tasks=0)
    with_players = {**line, "env_config": {"preset": "kuhn", "players": 2}}
    path = write_lines(tmp_path / "kuhn.jsonl", with_players)
    expected = "unknown key 'players'; the keys of env_config are preset, memory, reward_illegal"
    assert expected in message(path)
    write_lines(path, line)
    expected = "env='kuhn' has 2 players, but HANABI_PLAYERS=3; set HANABI_ENV=kuhn"
    assert expected in message(path, Settings(players=3))


# Shares


@examples(deadline=None)
@given(st.lists(SHARES, min_size=1, max_size=5), st.integers(0, 300), st.integers(1, 40))
def test_any_stretch_of_tasks_has_nearly_the_shares_and_a_whole_block_has_them_exactly(
    share_list: list[Fraction], start: int, length: int
) -> None:
    shares = tuple(share_list)
    total = sum(shares)

    def count_rows(num_tasks: int) -> Counter[int]:
        return Counter(locate(shares, task)[0] for task in range(start, start + num_tasks))

    block = len(block_order(shares))
    in_block = count_rows(block)
    in_stretch = count_rows(length)
    for row, share in enumerate(shares):
        assert in_block[row] == block * share / total
        assert abs(in_stretch[row] - length * share / total) <= len(shares)


def test_shares_without_a_short_common_block_are_refused_and_the_finest_allowed_is_not(
    tmp_path: Path,
) -> None:
    refusal = r"rows\.jsonl: shares 0\.123457, 1: .* need 1123457 tasks, but at most 10000 are"
    with pytest.raises(SettingsError, match=refusal):
        rows_of(tmp_path, {"share": 0.123457}, {"share": 1})
    rows = rows_of(tmp_path, {"share": 0.9999}, {"preset": "mini", "share": 0.0001})
    presets = Counter(task.env_config["preset"] for task in tasks(rows, 123, MAX_BLOCK))
    assert presets == {"laptop": 9999, "mini": 1}


@pytest.mark.parametrize(
    ("shares", "num_seeds", "steps"),
    [
        ((1, 1), (30, 30), 60),
        ((3, 1), (30, 30), 120),
        ((3, 1), (30, 10), 40),
    ],
)
def test_an_epoch_with_shares_ends_when_every_row_has_played_all_its_seeds(
    shares: tuple[int, int], num_seeds: tuple[int, int], steps: int, tmp_path: Path
) -> None:
    rows = []
    for share, count in zip(shares, num_seeds, strict=True):
        rows.append({"share": share, "env_config": {"seeds": list(range(count))}})
    settings = Settings(num_train_epochs=1.0, tasks_per_step=1)
    assert num_steps(settings, rows_of(tmp_path, *rows)) == steps


def test_a_row_without_seeds_is_one_step_of_an_epoch(tmp_path: Path) -> None:
    settings = Settings(num_train_epochs=3.0, tasks_per_step=4)
    endless = {"env_config": {}}
    assert num_steps(rows=rows_of(tmp_path, endless), settings=settings) == 3
    assert num_steps(rows=rows_of(tmp_path, endless, endless), settings=settings) == 6
    # Ten visits of each row, since shares hold within an epoch: 3 × 20 tasks in steps of 4.
    seeded = {"env_config": {"seeds": list(range(10))}}
    assert num_steps(rows=rows_of(tmp_path, endless, seeded), settings=settings) == 15


# Seeds


def seeds_of(folder: Path, settings: Settings) -> list[int]:
    """Return the seeds of the first 50 fresh tasks."""
    rows = rows_of(folder, {}, settings=settings)
    return [task.seed for task in tasks(rows, 0, 50)]


def test_the_seed_of_a_run_chooses_its_fresh_tasks(tmp_path: Path) -> None:
    assert seeds_of(tmp_path, Settings(task_seed=0)) == list(range(50))
    of_seven = [7 * 2**32 + task for task in range(50)]
    assert seeds_of(tmp_path, Settings(seed=7)) == of_seven
    assert seeds_of(tmp_path, Settings(seed=3, task_seed=7)) == of_seven
    assert seeds_of(tmp_path, Settings()) == seeds_of(tmp_path, Settings(seed=42))


def test_a_row_with_seeds_goes_round_them_whatever_the_seed_of_the_run(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"env_config": {"seeds": [4, 2]}}, settings=Settings(seed=7))
    assert [task.seed for task in tasks(rows, 0, 4)] == [4, 2, 4, 2]


def test_no_two_runs_share_a_fresh_task_up_to_the_last_of_the_last_seed(tmp_path: Path) -> None:
    first = set(seeds_of(tmp_path, Settings(seed=1)))
    assert first.isdisjoint(seeds_of(tmp_path, Settings(seed=2)))
    of_the_last = Settings(seed=2**31 - 1)
    shuffled_deck(make_spec("laptop"), "train", seeds_of(tmp_path, of_the_last)[-1])
    rows = rows_of(tmp_path, {}, settings=of_the_last)
    assert tasks(rows, 2**32 - 1, 1)[0].seed == 2**63 - 1
    refusal = "a run has at most 4294967296 fresh tasks; set another HANABI_TASK_SEED"
    with pytest.raises(SettingsError, match=refusal):
        tasks(rows, 2**32, 1)


# Further tasks


def test_a_further_task_is_of_the_same_row_and_no_task_that_the_run_has_already(
    tmp_path: Path,
) -> None:
    rows = rows_of(
        tmp_path, {"share": 3}, {"preset": "marshal-mini", "env_config": {"seeds": [5, 6, 7]}}
    )
    own = tasks(rows, 0, 40)
    others = []
    for attempt in (1, 2, 15):
        others += [further_task(rows, number, attempt) for number in range(40)]
    of_the_second = [task.number for task in others[40:80]]
    assert of_the_second == [2 * FURTHER_APART + number for number in range(40)]
    assert [task.env_config for task in others] == [task.env_config for task in own] * 3

    fresh = [task.seed for task in (*own, *others) if task.env_config["preset"] == "laptop"]
    assert len(set(fresh)) == len(fresh) == 120
    assert max(fresh) < 2**32
    # Of a row's seeds each of the others, never the task's own.
    pairs = set()
    for task, other in zip(own * 3, others, strict=True):
        if task.env_config["preset"] == "marshal-mini":
            pairs.add((task.seed, other.seed))
    assert pairs == {(5, 6), (5, 7), (6, 5), (6, 7), (7, 5), (7, 6)}


def test_a_replacement_is_replaced_as_the_task_in_whose_place_it_came(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *[{"share": 1}] * 6, {"preset": "marshal-mini"})
    # Of a resumed run whose task 6 timed out, and with HANABI_RESAMPLE_FLAT.
    replacement = further_task(rows, 6, 15)
    assert replacement.number == 6 + 15 * FURTHER_APART
    assert further_task(rows, replacement.number, 2) == further_task(rows, 6, 2)
    assert further_task(rows, replacement.number, 2).env_config["preset"] == "marshal-mini"


def test_the_only_seed_of_a_row_is_that_of_its_further_tasks_too(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"env_config": {"seeds": [9]}})
    assert further_task(rows, 0, 1).seed == 9
