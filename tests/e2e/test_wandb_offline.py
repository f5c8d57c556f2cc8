"""Trackers beside the real trainer: an offline run, TensorBoard, and a service that fails on the way.

The games come from scripts (scripted_trainer.py), so no rollout server takes part.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_resumed_run import SCRIPT, resume_at, write_settings

from conftest_e2e import clean_environment
from hanabi_grpo.runs.checkpoints import check_checkpoint
from wandb_backend import KEY, backend, wait_until
from wandb_files import artifacts, history, offline_records

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
Start = Callable[..., "subprocess.Popen[str]"]
STEPS = 3


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def launch(start_process: Start, settings: Path, **environ: str) -> "subprocess.Popen[str]":
    return start_process(
        [sys.executable, str(SCRIPT), "--settings", str(settings)],
        env={**clean_environment(), "SCRIPTED": "{}", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(trainer: "subprocess.Popen[str]") -> str:
    output, _ = trainer.communicate(timeout=400)
    assert trainer.returncode == 0, output[-5000:]
    return str(output)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_an_offline_run_and_tensorboard_have_the_curves_of_the_rows_and_a_resume_goes_on(
    tmp_path: Path, tiny_model: Path, start_process: Start
) -> None:
    folder = tmp_path / "train"
    variables = {"REPORT_TO": "wandb,tensorboard", "WANDB_MODE": "offline", "SAVE_STEPS": "1"}
    variables |= {"CKPT_ARTIFACT_NAME": "team", "CKPT_ARTIFACT_ALIASES": "newest,end", "LR_SCHEDULER_TYPE": "constant"}
    finish(launch(start_process, write_settings(folder, tiny_model, MAX_STEPS="2", **variables), WANDB_API_KEY=KEY))
    resume_at(folder, 2)
    output = finish(launch(start_process, write_settings(folder, tiny_model, MAX_STEPS=str(STEPS), **variables)))
    assert re.search(r"to send it: \.venv/bin/wandb sync \S+/offline-run-\S+ \S+/offline-run-\S+", output)
    rows, records = metrics(folder), offline_records(folder)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert len({record.run.run_id for record in records if record.HasField("run")}) == 1
    sent = {row["step"]: row for row in history(records) if "score/mean" in row}
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    for name in ("score/mean", "player_0/reward", "time/push"):
        wanted = [row[name] for row in rows]
        assert [sent[step][name] for step in range(1, STEPS + 1)] == pytest.approx(wanted), name
        assert [one.value for one in board.Scalars(name)] == pytest.approx(wanted), name
    logged = [one for one in artifacts(records) if one.kind == "model"]
    assert {one.name for one in logged} == {"team"}
    aliases = {alias for one in logged for alias in one.aliases}
    assert aliases >= {
        "checkpoint_global_step_1",
        "checkpoint_global_step_2",
        "checkpoint_global_step_3",
        "best",
        "end",
    }
    last = logged[-1]
    assert {"checkpoint_global_step_3", "newest", "end"} <= set(last.aliases)
    assert last.metadata["step"] == STEPS and last.metadata["adapters"] == ["player_0", "player_1"]
    assert last.metadata["rank"] == 8 and last.metadata["score"] is not None and last.metadata["spec_hashes"]
    kept = [name for name in check_checkpoint(folder / f"checkpoint-{STEPS}").files if not name.startswith("trainer/")]
    beside = {"manifest.json", "README.md", "settings.json", "training_score.json", "episodes/step_000002.jsonl"}
    assert set(last.files) == {*kept, *beside}
    for name in kept:
        assert last.files[name].read_bytes() == (folder / f"checkpoint-{STEPS}" / name).read_bytes()
    with_key = [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert with_key == []


def test_a_key_that_is_refused_ends_the_run_before_its_first_step(
    tmp_path: Path, tiny_model: Path, start_process: Start
) -> None:
    folder = tmp_path / "train"
    with backend("401") as service:
        settings = write_settings(folder, tiny_model, MAX_STEPS="1", REPORT_TO="wandb")
        trainer = launch(start_process, settings, **service.environ)
        output, _ = trainer.communicate(timeout=400)
    assert trainer.returncode == 2, output[-3000:]
    assert "W&B refuses this run" in output and not (folder / "metrics.jsonl").exists()


def test_training_ends_well_when_the_service_fails_on_the_way(
    tmp_path: Path, tiny_model: Path, start_process: Start
) -> None:
    folder = tmp_path / "train"
    with backend("good") as service:
        settings = write_settings(folder, tiny_model, MAX_STEPS=str(STEPS), REPORT_TO="wandb")
        limits = {"WANDB_FINISH_TIMEOUT": "5"}
        trainer = launch(start_process, settings, **service.environ, **limits)
        # The first request of a run that is open.
        assert wait_until(lambda: any(one.endswith("/file_stream") for one in service.seen) or trainer.poll(), 300)
        service.mode = "hang"
        output = finish(trainer)
    assert len(metrics(folder)) == STEPS
    assert (folder / f"checkpoint-{STEPS}").is_dir()
    assert output.count("training goes on") <= 1
    assert f"hanabi-grpo upload {folder}" in output
    assert os.fspath(folder / "wandb.log") in output
