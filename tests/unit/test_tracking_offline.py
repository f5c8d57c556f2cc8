"""W&B without a network: what lies in the run folder, after a whole run, a killed trainer and an upload."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hanabi_grpo.tracking.mirror import Mirror, unsent_folders
from hanabi_grpo.tracking.record import read_record
from tracked_runs import PLAYERS, SECRET, add_checkpoint, add_row, tracked_run
from wandb_backend import KEY, wait_until
from wandb_files import artifacts, history, offline_records

COMMAND = str(Path(sys.executable).with_name("hanabi-grpo"))
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "CKPT_", "UPLOAD_"))]:
        monkeypatch.delenv(name)
    # A developer's .env is none of these tests'.
    monkeypatch.chdir(tmp_path)


def models(run: Path) -> list[tuple[str, tuple[str, ...], int]]:
    found = [one for one in artifacts(offline_records(run)) if one.kind == "model"]
    return [(one.name, one.aliases, one.metadata["step"]) for one in found]


def mirrored(run: Path, from_step: int, *, then: Callable[[], object] = lambda: None, exit_code: int = 0) -> None:
    started = Mirror(run, from_step)
    then()
    started.close(exit_code)


def test_an_offline_run_holds_rows_games_and_artifacts_and_says_how_to_send_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"WANDB_MODE": "offline", "HANABI_PRESET": "laptop", "CKPT_ARTIFACT_NAME": "team", "WANDB_NAME": "one"}
    run = tracked_run(tmp_path / "run", steps=12, checkpoints=(12,), **variables)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HANABI_API_KEY", SECRET)

    def lose_then_save() -> None:
        add_row(run, 13, **{"score/mean": 0.0})
        add_checkpoint(run, 13)

    with caplog.at_level(logging.INFO):
        mirrored(run, 0, then=lose_then_save)
    records = offline_records(run)
    rows = [row for row in history(records) if "score/mean" in row]
    assert [row["step"] for row in rows] == list(range(1, 14))
    assert rows[0]["player_1/reward"] == 1.5 and rows[0]["play/illegal_per_game"] == 0.5
    assert any("samples/games" in key for row in history(records) for key in row)
    assert any("samples/replay" in key for row in history(records) for key in row)
    # These rows have no figure that an alarm watches.
    pictures = {key.split("/")[1] for row in history(records) for key in row if key.startswith("charts/")}
    assert pictures == {"score", "phases"}
    assert (run / "charts/score.png").read_bytes().startswith(b"\x89PNG")
    logged = [one for one in artifacts(records) if one.kind == "model"]
    assert {one.name for one in logged} == {"team"}
    by_step = {
        step: {alias for one in logged if one.metadata["step"] == step for alias in one.aliases} for step in (12, 13)
    }
    assert {"checkpoint_global_step_12", "best"} <= by_step[12]
    assert by_step[13] == {"checkpoint_global_step_13", "latest", "end"}
    assert set(logged[-1].files) == {
        "README.md",
        "manifest.json",
        "settings.json",
        "training_score.json",
        "episodes/step_000012.jsonl",
        *(f"{name}/{file}" for name in PLAYERS for file in ("adapter_config.json", "adapter_model.safetensors")),
    }
    assert all(path.is_file() for path in logged[-1].files.values()), "wandb sync needs them later"
    assert next(record.run.display_name for record in records if record.HasField("run")) == "one"
    assert not [path for path in run.rglob("*") if path.is_file() and _holds_a_key(path)]
    [folder] = unsent_folders(run)
    assert caplog.messages[-1].endswith(f".venv/bin/wandb sync {folder}")


def _holds_a_key(path: Path) -> bool:
    data = path.read_bytes()
    return KEY.encode() in data or SECRET.encode() in data


@pytest.mark.parametrize(
    ("log_model", "upload", "expected"),
    [
        ("checkpoint", "false", [("checkpoint_global_step_2",), ("checkpoint_global_step_3",)]),
        ("end", "false", [("checkpoint_global_step_3", "latest", "end")]),
        ("false", "false", []),
    ],
)
def test_the_settings_say_which_checkpoints_go_up(
    tmp_path: Path, log_model: str, upload: str, expected: list[tuple[str, ...]]
) -> None:
    variables = {"WANDB_MODE": "offline", "WANDB_LOG_MODEL": log_model, "UPLOAD_CKPT_TO_WANDB": upload}
    run = tracked_run(tmp_path / "run", steps=3, checkpoints=(2, 3), games=False, **variables)
    mirrored(run, 0)
    # W&B's library itself adds `latest` to everything.
    assert [set(aliases) - {"best", "latest"} for _, aliases, _ in models(run)] == [
        set(aliases) - {"latest"} for aliases in expected
    ]


def test_a_resumed_run_goes_on_under_its_id_with_the_steps_that_are_new(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=2, checkpoints=(2,), games=False, WANDB_MODE="offline")
    mirrored(run, 0)
    first = read_record(run)
    mirrored(run, 2, then=lambda: add_row(run, 3))
    records = offline_records(run)
    assert {record.run.run_id for record in records if record.HasField("run")} == {first.id}
    assert [row["step"] for row in history(records) if "score/mean" in row] == [1, 2, 3]
    assert [one.step for one in read_record(run).artifacts] == [2]


_SILENT = """
import sys
from pathlib import Path
from transformers import TrainerState
from hanabi_grpo.logs import set_up_logging
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking.callback import TrackingCallback

run = Path(sys.argv[1])
set_up_logging(file=run / "train.log")
tracking = TrackingCallback(read_settings(run / "settings.json"), run)
state = TrainerState(max_steps=1)
tracking.on_train_begin(None, state, None)
state.global_step = 1
tracking.on_log(None, state, None, {"games": 16.0, "loss": 0.5})
tracking.on_train_end(None, state, None)
print(sorted(name for name in sys.modules if "wandb" in name.split(".") or "tensorboard" in name.split(".")))
"""


def test_without_trackers_a_process_imports_writes_and_says_nothing_of_them(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=0, games=False, REPORT_TO="none")
    done = subprocess.run([sys.executable, "-c", _SILENT, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "settings.json", "train.log"]
    said = done.stdout.removesuffix("[]\n") + done.stderr + (run / "train.log").read_text()
    assert "step 1/1" in said
    assert not re.search(r"wandb|W&B|tensorboard", said, re.IGNORECASE), said


_TRAINER = """
import sys, time
from pathlib import Path
from hanabi_grpo.tracking.mirror import Mirror
started = Mirror(Path(sys.argv[1]), 0)
print(started._process.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_trainer_leaves_a_folder_that_upload_sends_afterwards(tmp_path: Path, start_process: Start) -> None:
    run = tracked_run(tmp_path / "run", steps=3, checkpoints=(3,), WANDB_MODE="offline", WANDB_LOG_MODEL="end")
    trainer = start_process([sys.executable, "-c", _TRAINER, str(run)], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    mirror = psutil.Process(int(trainer.stdout.readline()))
    add_row(run, 4)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert wait_until(lambda: not mirror.is_running(), 120)
    # The rest of the rows is there; nobody asked for the artifact of a run that did not end.
    assert [row["step"] for row in history(offline_records(run)) if "score/mean" in row] == [1, 2, 3, 4]
    assert models(run) == []
    environ = {**os.environ, "WANDB_MODE": "offline", "CKPT_ARTIFACT_ALIASES": "rescued"}
    done = start_process([COMMAND, "upload", str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ)
    output, _ = done.communicate()
    assert done.returncode == 0, output
    assert "artifact: run-adapters (checkpoint_global_step_3, rescued, best)" in output
    assert ".venv/bin/wandb sync " in output
    assert [(name, step) for name, _, step in models(run)] == [("run-adapters", 3)]
    assert json.loads((run / "artifacts/step_3/settings.json").read_text())["settings"]["HANABI_API_KEY"] is None


def test_upload_refuses_what_it_cannot_send_in_one_line(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", games=False)
    for folder, variables, message in (
        (tmp_path, {}, "no settings.json in it"),
        (run, {"WANDB_MODE": "disabled"}, "WANDB_MODE=disabled: nothing is uploaded"),
    ):
        words, environ = [COMMAND, "upload", str(folder)], {**os.environ, **variables}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert message in done.stderr and "Traceback" not in done.stderr
