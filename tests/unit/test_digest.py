"""Digests of runs: equal for what the settings decide, whatever the clock says."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.digest import run_digest, timeless
from tracked_runs import add_row


def made_run(folder: Path, *, weights: bytes = b"w", **metrics: float) -> Path:
    """Write a run of two steps with a checkpoint of two adapters."""
    folder.mkdir()
    for step in (1, 2):
        add_row(folder, step, **{"score/mean": 1.5, "time/push": 0.1, **metrics})
    for step in (9, 10):
        for player, content in (("player_0", b"x"), ("player_1", weights)):
            adapter = folder / f"checkpoint-{step}" / player
            adapter.mkdir(parents=True)
            (adapter / "adapter_model.safetensors").write_bytes(content * step)
            (adapter / "adapter_config.json").write_text("{}")
    return folder


def test_figures_of_the_clock_and_the_machine_are_left_out() -> None:
    row = {
        "step": 3,
        "seconds": 7.1,
        "step_time": 2.0,
        "time/push": 0.1,
        "tokens/sampled_per_second": 900.0,
        "tokens/cached_share": 0.4,
        "memory/peak_gib": 0.7,
        "utilisation/learning": 0.3,
        "player_0/parity": 2e-7,
        "tokens/useful_share": 0.9,
    }
    assert timeless(row) == {"step": 3, "player_0/parity": 2e-7, "tokens/useful_share": 0.9}


def test_runs_that_differ_in_their_times_alone_have_the_same_digest(tmp_path: Path) -> None:
    first = run_digest(made_run(tmp_path / "a"))
    slower = run_digest(made_run(tmp_path / "b", **{"time/push": 9.0, "step_time": 8.0}))
    assert slower == first
    assert first.differences(slower) == []
    assert set(first.adapters) == {"player_0", "player_1"}


def test_where_the_base_model_lies_is_left_out_and_the_rest_of_the_configuration_is_not(
    tmp_path: Path,
) -> None:
    digests = []
    for name, config in (
        ("a", '{"r": 8, "base_model_name_or_path": "/here/tiny-model"}'),
        ("b", '{"base_model_name_or_path": "/there/tiny-model", "r": 8}'),
        ("c", '{"r": 16, "base_model_name_or_path": "/here/tiny-model"}'),
        ("d", "{"),
    ):
        run = made_run(tmp_path / name)
        (run / "checkpoint-10" / "player_0" / "adapter_config.json").write_text(config)
        if name == "d":
            with pytest.raises(RunFolderError, match=r"adapter_config.json: cannot be read"):
                run_digest(run)
        else:
            digests.append(run_digest(run))
    assert digests[0] == digests[1]
    assert digests[0].differences(digests[2]) == ["player_0"]


def test_a_figure_or_a_byte_of_an_adapter_makes_another_digest(tmp_path: Path) -> None:
    first = run_digest(made_run(tmp_path / "a"))
    other_score = run_digest(made_run(tmp_path / "b", **{"score/mean": 1.5000001}))
    assert first.differences(other_score) == ["metrics"]
    other_weights = run_digest(made_run(tmp_path / "c", weights=b"v"))
    assert first.differences(other_weights) == ["player_1"]
    earlier = run_digest(tmp_path / "a" / "checkpoint-9")
    assert first.differences(earlier) == ["player_0", "player_1"], "the last is number 10"


def test_the_command_says_whether_runs_are_equal(tmp_path: Path) -> None:
    names = []
    for name, weights in (("a", b"w"), ("b", b"w"), ("c", b"v")):
        names.append(str(made_run(tmp_path / name, weights=weights)))
    result = CliRunner().invoke(app, ["digest", *names])
    assert result.exit_code == 0, result.output
    assert result.output.count("equal to the first") == 1
    assert "differs from the first in player_1" in result.output
    assert run_digest(tmp_path / "a").metrics in result.output
    # A demo keeps its run in a folder of its own.
    (tmp_path / "demo").mkdir()
    (tmp_path / "a").rename(tmp_path / "demo" / "train")
    result = CliRunner().invoke(app, ["digest", str(tmp_path / "demo"), names[1]])
    assert "equal to the first" in result.output


def test_a_folder_without_metrics_or_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no checkpoint; name the folder of a run"):
        run_digest(tmp_path)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(RunFolderError, match=r"no rows in metrics\.jsonl"):
        run_digest(tmp_path)
