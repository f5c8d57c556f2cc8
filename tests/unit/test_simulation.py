"""The model of a step: its limits, its calibration on a made run, and the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.simulation.calibrate import calibrate, compared, measure
from hanabi_grpo.simulation.model import Assumptions, Layout, Work, rollout_seconds, step_times

EVEN = Assumptions(length_spread=0.0, push_seconds=0.5, adapter_mb=10.0, link_mb=100.0, engine_half=10.0)


def test_games_of_one_length_take_that_many_tokens_at_the_speed_of_all_of_them() -> None:
    # 4 games of 30 tokens: a token of each takes (4 + 6) / 100 s.
    assert rollout_seconds([30.0] * 4, slots=8, peak=100.0, half=6.0) == pytest.approx(3.0)
    # Two at a time: twice 30 tokens at (2 + 6) / 100 s.
    assert rollout_seconds([30.0] * 4, slots=2, peak=100.0, half=6.0) == pytest.approx(4.8)
    assert rollout_seconds([], slots=2, peak=100.0, half=6.0) == 0.0


def test_when_a_game_ends_the_others_go_on_faster() -> None:
    # 10 tokens of both at (2 + 8) / 10 s, then 20 of one at (1 + 8) / 10 s.
    assert rollout_seconds([10.0, 30.0], slots=2, peak=10.0, half=8.0) == pytest.approx(10 + 18)


@given(st.lists(st.floats(1, 50), min_size=1, max_size=30), st.integers(1, 40), st.floats(1, 1000), st.floats(0.0, 100))
def test_an_engine_is_between_one_game_after_the_other_and_its_peak(
    lengths: list[float], slots: int, peak: float, half: float
) -> None:
    seconds = rollout_seconds(lengths, slots=slots, peak=peak, half=half)
    assert sum(lengths) / peak * 0.999 <= seconds <= sum(lengths) * (1 + half) / peak * 1.001


def test_one_server_without_overlap_takes_the_sum_of_the_parts_and_with_it_the_longer_side() -> None:
    work, layout = Work(deals=4, games=5, turns=6.0, reply_tokens=3.0, updates=2), Layout()
    found = step_times(work, layout, EVEN)
    assert found.push == pytest.approx(0.5 + 2 * 10 / 100)
    assert found.rollout == pytest.approx(18 * (20 + 10) / EVEN.engine_peak)
    assert found.train == pytest.approx(2 * 20 * 18 / EVEN.train_speed)
    assert found.plain == pytest.approx(found.push + found.rollout + found.train)
    assert found.overlapped == pytest.approx(found.push + found.train)
    slow = step_times(work, layout, replace(EVEN, engine_peak=1.0))
    assert slow.overlapped == slow.rollout


def test_with_many_servers_the_trainers_part_remains() -> None:
    work = Work(deals=4, games=5)
    fast = replace(EVEN, engine_half=0.0, adapter_mb=0.0)
    times = {servers: step_times(work, Layout(servers=servers), fast) for servers in (1, 2, 4, 64)}
    assert times[2].rollout == pytest.approx(times[1].rollout / 2)
    # A deal is never cut: more servers than deals are idle.
    assert times[64].rollout == times[4].rollout
    one_deal = step_times(replace(work, deals=1), Layout(), fast).rollout
    assert times[4].rollout == pytest.approx(one_deal)
    assert times[64].plain - one_deal == pytest.approx(times[1].plain - times[1].rollout)
    # Every server gets the adapters through the trainer's one network.
    pushes = [step_times(work, Layout(servers=servers), EVEN).push for servers in (1, 3)]
    assert pushes[1] - pushes[0] == pytest.approx(2 * 2 * 10 / 100)


def test_more_ranks_and_gpus_help_by_less_than_their_number() -> None:
    work = Work()
    one, four = (step_times(work, Layout(gpus=number, ranks=number), EVEN) for number in (1, 4))
    assert one.train / four.train == pytest.approx(4 * 0.9**2)
    assert one.rollout / four.rollout == pytest.approx(4 * 0.8**2)


def made_run(folder: Path, *, rollout: float, train: float, push: float = 0.1, rows: int = 20, **settings: Any) -> Path:
    """A run of 40 games of 6 turns of 3 tokens; its first steps are slow, one is interrupted, the last line torn."""
    folder.mkdir(parents=True)
    lines = []
    for step in range(1, rows + 1):
        factor = 5.0 if step <= 5 else 30.0 if step == 12 else 1.0
        lines.append(
            json.dumps(
                {
                    "step": step,
                    "games": 40.0,
                    "turns_per_game": 6.0,
                    "reply_tokens": 720.0,
                    "time/rollout": factor * rollout,
                    "time/train": factor * train,
                    "time/push": push,
                    "step_time": factor * (rollout + train + push),
                }
            )
        )
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 99, "games"')
    values = {
        "HANABI_DEALS_PER_STEP": 8,
        "NUM_GENERATIONS": 5,
        "HANABI_PLAYERS": 2,
        "VLLM_SERVER_HOST": "127.0.0.1",
        "VLLM_TENSOR_PARALLEL_SIZE": 1,
        "VLLM_DATA_PARALLEL_SIZE": 1,
        "NPROC_PER_NODE": 1,
        **settings,
    }
    (folder / "settings.json").write_text(json.dumps({"settings": values}))
    return folder


def test_a_run_gives_its_speeds_and_the_model_gives_its_phases_back(tmp_path: Path) -> None:
    run = measure(made_run(tmp_path / "run", rollout=2.0, train=4.0))
    assert run.work == Work(deals=8, games=5, players=2, turns=6.0, reply_tokens=3.0, updates=1)
    assert (run.steps, run.times.rollout, run.times.train, run.step) == (15, 2.0, 4.0, pytest.approx(6.1))
    assumed, fitted = calibrate(run, replace(EVEN, adapter_mb=0.0))
    assert set(fitted) == {"engine_peak", "train_speed", "push_seconds"}
    assert assumed.train_speed == pytest.approx(720 / 4.0)
    assert assumed.engine_peak == pytest.approx(18 * (40 + 10) / 2.0)
    assert all(abs(one["error"]) < 1e-9 for one in compared(run, assumed).values())


def test_another_run_is_predicted_from_it_and_the_error_is_said(tmp_path: Path) -> None:
    first = measure(made_run(tmp_path / "run", rollout=2.0, train=4.0))
    assumed, _ = calibrate(first, replace(EVEN, adapter_mb=0.0))
    # Three updates over the same tokens, on two servers; it really took longer than that.
    hosts = {"HANABI_UPDATES_PER_STEP": 3, "VLLM_SERVER_HOST": "a,b", "HANABI_OVERLAP": True}
    other = measure(made_run(tmp_path / "other", rollout=1.5, train=15.0, **hosts))
    assert (other.layout.servers, other.overlap) == (2, True)
    found = compared(other, assumed)
    assert found["train"] == {"model": pytest.approx(12.0), "measured": 15.0, "error": pytest.approx(-0.2)}
    assert found["rollout"]["model"] == pytest.approx(2.0 * (20 + 10) / (40 + 10))
    assert found["step"]["model"] == pytest.approx(12.1)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no run to measure"):
        measure(tmp_path)
    run = made_run(tmp_path / "run", rollout=1.0, train=1.0)
    (run / "metrics.jsonl").write_text('{"step": 1, "games": 8.0, "turns_per_game": 6.0, "reply_tokens": 3.0}\n')
    with pytest.raises(SettingsError, match="no run to measure"):
        measure(run)
    with pytest.raises(SettingsError, match="games and learning must have taken time"):
        measure(made_run(tmp_path / "zero", rollout=0.0, train=1.0))


def test_the_command_prints_rows_assumptions_with_their_sources_and_the_error(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", rollout=2.0, train=4.0)
    other = made_run(tmp_path / "other", rollout=2.0, train=5.0)
    words = ["simulate", "--calibrate", str(run), "--check", str(other), "--servers", "1,4", "--ranks", "1,2"]
    said = CliRunner().invoke(app, [*words, "--players", "2,3", "--assume", "engine_half=30", "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert [(row["servers"], row["ranks"], row["players"]) for row in found["rows"]] == [
        (servers, ranks, players) for servers in (1, 4) for ranks in (1, 2) for players in (2, 3)
    ]
    assert found["rows"][0]["step"] == pytest.approx(6.1)
    sources = {one["name"]: one["source"] for one in found["assumptions"]}
    assert sources["engine_peak"] == f"measured: {run}"
    assert (sources["engine_half"], sources["rank_gain"]) == ("given", "judgement")
    assert found["checks"][str(other)]["train"]["error"] == pytest.approx(-0.2)
    table = CliRunner().invoke(app, words)
    assert table.exit_code == 0 and "-20 %" in table.output and "a model, not a measurement" in table.output


@pytest.mark.parametrize(
    "words",
    [
        ["--servers", "0"],
        ["--ranks", "two"],
        ["--turns", ","],
        ["--assume", "speed=3"],
        ["--assume", "train_speed=0"],
        ["--assume", "train_speed=nan"],
        ["--calibrate", "nowhere"],
    ],
)
def test_what_cannot_be_simulated_is_one_line(words: list[str]) -> None:
    said = CliRunner().invoke(app, ["simulate", *words])
    assert said.exit_code == 2 and said.stderr.startswith("error: ")
