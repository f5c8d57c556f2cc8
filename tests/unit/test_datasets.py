import json
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import (
    EXAMPLE_ROW,
    deals,
    load_rows,
    num_steps,
    played_setups,
    training_rows,
    write_dataset,
)
from hanabi_grpo.settings import Settings

DATA = Path(__file__).parents[2] / "data"
MESSAGES = [{"role": "user", "content": "Play."}]


def write(folder: Path, *configs: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"messages": MESSAGES, "env_config": config}) + "\n" for config in configs))
    return path


def message(path: Path, settings: Settings | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_rows(path, settings or Settings())
    return str(caught.value)


def test_missing_keys_come_from_the_settings(tmp_path: Path) -> None:
    path = write(tmp_path, {"preset": "laptop", "reward_illegal": -1.0})
    settings = Settings(observation="full", max_turns=9)
    assert load_rows(path, settings) == [
        {
            "messages": MESSAGES,
            "env": "hanabi",
            "env_config": {
                "preset": "laptop",
                "players": 2,
                "observation": "full",
                "legal_moves": False,
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
            "first_deal": 0,
            "end_deal": None,
        }
    ]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"preset": "laptpo"}, "did you mean 'laptop'"),
        ({"preset": "laptop", "presset": "x"}, "unknown key 'presset'; did you mean preset?"),
        ({"preset": "laptop", "suite": "eval"}, "suite='eval': these deals are held out for evaluation"),
        ({"preset": "laptop", "suite": ""}, "suite='': must be a name such as train."),
        ({"preset": "laptop", "seeds": []}, "seeds=[]: must be a list of whole numbers"),
        ({"preset": "laptop", "seeds": [1, -1]}, "seeds: -1 is not a whole number from 0 to 2**63 - 1."),
        ({"preset": "laptop", "seeds": [True]}, "seeds: True is not a whole number"),
        (
            {"preset": "laptop", "players": 3},
            "env_config players=3 needs HANABI_PLAYERS=3 in both terminals, or unset DATASET.",
        ),
        ({"preset": "laptop", "max_turns": -1}, "max_turns=-1"),
        ({"preset": "laptop", "reward_score": "much"}, "reward_score='much'"),
        ({"preset": "laptop", "share": 2}, "'share' belongs beside env_config"),
        ("laptop", "env_config='laptop': must be a JSON object."),
    ],
)
def test_a_bad_env_config_is_refused_with_file_line_problem_and_a_right_row(
    tmp_path: Path, config: Any, problem: str
) -> None:
    path = write(tmp_path, {"preset": "laptop"}, config)
    text = message(path)
    assert text.startswith(f"{path} line 2: ")
    assert problem in text
    assert text.endswith(f"Example of a row: {EXAMPLE_ROW}")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"messages": NaN}', "NaN is no JSON number"),
        (b"3", "a row is a JSON object."),
        (b'{"env": "../x.py"}', "an environment is named by a word"),
        (b'{"env_config": {}}', "messages must be a list"),
        (b'{"messages": []}', "messages must be a list"),
        (b'{"messages": [{"role": "user"}]}', "messages must be a list"),
        (b'{"message": []}', "unknown key 'message'; did you mean messages?"),
        (b'{"preset": "laptop"}', "'preset' belongs into env_config: a row may hold messages, env, env_config, share"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n\n" + line + b"\n")
    text = message(path)
    assert text.startswith(f"{path} line 3: ") and problem in text


def test_a_key_with_another_value_in_the_environment_is_an_error_and_with_the_same_value_is_not(tmp_path: Path) -> None:
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


def test_deals_take_rows_in_turn_with_fresh_or_cycled_seeds(tmp_path: Path) -> None:
    rows = load_rows(write(tmp_path, {"preset": "laptop"}, {"preset": "mini", "seeds": [7, 9]}), Settings(deal_seed=0))
    found = [(deal["deal"], deal["env_config"]["preset"], deal["seed"]) for deal in deals(rows, 0, 7)]
    assert found == [
        (0, "laptop", 0),
        (1, "mini", 7),
        (2, "laptop", 2),
        (3, "mini", 9),
        (4, "laptop", 4),
        (5, "mini", 7),
        (6, "laptop", 6),
    ]


def test_epochs_count_the_seeds_and_max_steps_wins(tmp_path: Path) -> None:
    seeded = load_rows(write(tmp_path, {"preset": "laptop", "seeds": list(range(20))}), Settings())
    assert num_steps(Settings(num_train_epochs=2.0, deals_per_step=8), seeded) == 5
    assert num_steps(Settings(num_train_epochs=2.0, max_steps=3), seeded) == 3
    assert num_steps(Settings(), seeded) == 500


@pytest.mark.parametrize(("name", "preset"), [("hanabi.grpo.jsonl", "full"), ("hanabi.laptop.jsonl", "laptop")])
def test_the_files_of_the_project_are_what_the_command_writes(tmp_path: Path, name: str, preset: str) -> None:
    line = write_dataset(tmp_path / name, [dataset_row(preset, players=None, suite="train", num_deals=0)])
    assert line == preset
    assert (DATA / name).read_text() == (tmp_path / name).read_text()
    assert [row["seeds"] for row in load_rows(DATA / name, Settings())] == [None]


def test_a_row_holds_a_fixed_list_and_what_could_not_be_trained_on_is_refused() -> None:
    row = dataset_row("mini", players=3, suite="train", num_deals=2)
    assert row["env_config"] == {"preset": "mini", "suite": "train", "players": 3, "seeds": [0, 1]}
    right: dict[str, Any] = {"preset": "laptop", "suite": "train", "num_deals": 0}
    bad = {
        "preset": ("labtop", "did you mean 'laptop'"),
        "suite": ("eval", "held out"),
        "num_deals": (-1, "-1"),
        "env": ("chess", "no such environment"),
    }
    for name, (value, problem) in bad.items():
        with pytest.raises(SettingsError, match=problem):
            dataset_row(**{**right, name: value})


def test_rows_of_another_environment_take_what_they_leave_open_from_its_preset(tmp_path: Path) -> None:
    path = tmp_path / "kuhn.jsonl"
    row = dataset_row("kuhn", env="kuhn", suite="train", num_deals=0)
    assert write_dataset(path, [row]) == "kuhn"
    config = {"preset": "kuhn", "reward_illegal": -0.5, "reward_unparsable": -0.5, "reward_out_of_tokens": -0.5}
    for settings in (Settings(), Settings(env="kuhn")):
        [found] = load_rows(path, settings)
        assert (found["env"], found["env_config"], found["messages"][0]["content"]) == ("kuhn", config, "Play kuhn.")
        assert deals([found], 3, 1)[0]["env"] == "kuhn"
        assert played_setups([found])[0].spec.payoff == "zero_sum"
    assert training_rows(Settings(env="kuhn"))[0]["env_config"] == config
    path.write_text(json.dumps({**row, "env_config": {"preset": "kuhn", "players": 2}}))
    assert "unknown key 'players'; env_config may hold preset, reward_illegal" in message(path)
    path.write_text(json.dumps(row))
    assert "env='kuhn' has 2 players, but HANABI_PLAYERS=3; set HANABI_ENV=kuhn" in message(path, Settings(players=3))
