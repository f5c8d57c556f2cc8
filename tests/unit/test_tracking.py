"""Runs at W&B with its real library: recorded on this disk, and its bad days with a stand-in."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from transformers import TrainerState

from hanabi_grpo.commands.mirror import _LOOK_SECONDS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.validation import Validated, write_validations
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking import mirror
from hanabi_grpo.tracking.callback import TrackingCallback
from hanabi_grpo.tracking.mirror import Mirror, unsent_folders
from hanabi_grpo.tracking.record import read_record
from tracked_runs import PLAYERS, SECRET, add_checkpoint, add_row, tracked_run
from waiting import wait_until
from wandb_backend import KEY, Backend, backend
from wandb_files import artifacts, history, offline_records

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


def mirrored(run: Path, from_step: int, *, then: Callable[[], object] = lambda: None) -> None:
    started = Mirror(run, from_step)
    then()
    started.close(0)


def files_with(folder: Path, *secrets: str) -> list[Path]:
    contents = [(path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    return [
        path for path, content in contents if any(secret.encode() in content for secret in secrets)
    ]


def test_an_offline_run_holds_rows_games_and_artifacts_and_says_how_to_send_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {
        "WANDB_MODE": "offline",
        "HANABI_PRESET": "laptop",
        "CKPT_ARTIFACT_NAME": "team",
        "WANDB_NAME": "one",
    }
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
    assert rows[0]["player_1/reward"] == 1.5 and rows[0]["illegal_per_game"] == 0.5
    assert any("samples/replay" in key for row in history(records) for key in row)
    logged = [one for one in artifacts(records) if one.kind == "model"]
    assert {one.name for one in logged} == {"team"}
    twelve, thirteen = (
        {alias for one in logged if one.metadata["step"] == step for alias in one.aliases}
        for step in (12, 13)
    )
    assert {"checkpoint_global_step_12", "best"} <= twelve
    assert thirteen == {"checkpoint_global_step_13", "latest", "end"}
    adapters = {
        f"{name}/{file}"
        for name in PLAYERS
        for file in ("adapter_config.json", "adapter_model.safetensors")
    }
    notes = {
        "README.md",
        "manifest.json",
        "settings.json",
        "training_score.json",
        "episodes/step_000012.jsonl",
    }
    assert set(logged[-1].files) == adapters | notes
    assert all(path.is_file() for path in logged[-1].files.values()), "wandb sync needs them later"
    assert next(record.run.display_name for record in records if record.HasField("run")) == "one"
    assert files_with(run, KEY, SECRET) == []
    [folder] = unsent_folders(run)
    assert caplog.messages[-1].endswith(f".venv/bin/wandb sync {folder}")


@pytest.mark.parametrize(
    ("log_model", "expected"),
    [
        ("checkpoint", [{"checkpoint_global_step_2"}, {"checkpoint_global_step_3"}]),
        ("end", [{"checkpoint_global_step_3", "end"}]),
        ("false", []),
    ],
)
def test_the_settings_say_which_checkpoints_go_up(
    tmp_path: Path, log_model: str, expected: list[set[str]]
) -> None:
    variables = {
        "WANDB_MODE": "offline",
        "WANDB_LOG_MODEL": log_model,
        "UPLOAD_CKPT_TO_WANDB": "false",
    }
    run = tracked_run(tmp_path / "run", steps=3, checkpoints=(2, 3), games=False, **variables)
    mirrored(run, 0)
    # W&B's library itself adds `latest` to everything.
    assert [set(aliases) - {"best", "latest"} for _, aliases, _ in models(run)] == expected


@pytest.mark.parametrize("log_model", ["checkpoint", "end"])
def test_the_best_is_the_version_that_validation_chose_and_the_last_one_stays_the_latest(
    tmp_path: Path, log_model: str
) -> None:
    variables = {
        "WANDB_MODE": "offline",
        "WANDB_LOG_MODEL": log_model,
        "UPLOAD_CKPT_TO_WANDB": "true",
    }
    run = tracked_run(tmp_path / "run", steps=2, checkpoints=(2,), games=False, HANABI_EVAL_STEPS="2", SAVE_STEPS="2",
                      **variables)  # fmt: skip

    def validate(*scores: float) -> None:
        write_validations(
            run, [Validated(step=2 * n, score=one, se=0.1) for n, one in enumerate(scores)]
        )

    def train() -> None:
        time.sleep(3 * _LOOK_SECONDS)
        assert models(run) == [], "the validation of step 2 is still going on"
        for step, scores in ((3, (1.0, 3.0)), (4, (1.0, 3.0, 2.0))):
            validate(*scores)
            add_row(run, step, **{"score/mean": 9.0})
        add_checkpoint(run, 4)

    mirrored(run, 0, then=train)
    assert {step: set(aliases) - {"latest"} for _, aliases, step in models(run)[:1]} == {
        2: {"checkpoint_global_step_2", "best"}
    }
    assert [step for _, _, step in models(run)] == (
        [2, 4, 4] if log_model == "checkpoint" else [2, 4]
    )
    assert all("best" not in aliases for _, aliases, step in models(run) if step == 4)
    rows = history(offline_records(run))
    assert [row["validation/score/mean"] for row in rows if "validation/score/mean" in row] == [
        2.0
    ], "no row has it"


def test_a_resumed_run_goes_on_under_its_id_with_the_steps_that_are_new(tmp_path: Path) -> None:
    run = tracked_run(
        tmp_path / "run", steps=2, checkpoints=(2,), games=False, WANDB_MODE="offline"
    )
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
tracking.close()
print(sorted(name for name in sys.modules if "wandb" in name.split(".")))
"""


def test_without_a_tracker_a_process_imports_writes_and_says_nothing_of_it(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=0, games=False, REPORT_TO="none")
    done = subprocess.run(
        [sys.executable, "-c", _SILENT, str(run)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert sorted(path.name for path in run.iterdir()) == [
        "metrics.jsonl",
        "settings.json",
        "train.log",
    ]
    said = done.stdout.removesuffix("[]\n") + done.stderr + (run / "train.log").read_text()
    assert "step 1/1" in said
    assert not re.search(r"wandb|W&B", said, re.IGNORECASE), said


def test_the_line_of_a_step_fits_100_columns_and_counts_what_is_left_from_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("hanabi_grpo.tracking.terminal_monitor.time.time", lambda: clock[0])
    run = tracked_run(tmp_path / "run", steps=0, games=False, REPORT_TO="none")
    tracking, state = (
        TrackingCallback(read_settings(run / "settings.json"), run),
        TrainerState(max_steps=1000),
    )
    row = {
        "games": 16.0,
        "score/mean": -12.34,
        "score/se": 0.12,
        "illegal_per_game": 0.1,
        "unparsable_per_game": 0.2,
    }
    caplog.set_level("INFO")
    for step, seconds in ((7, 500), (8, 2), (9, 4)):
        clock[0] += seconds
        state.global_step = step
        tracking.on_log(None, state, None, {**row, "grad_norm": 0.219, "loss": -0.0123})
    said = "score -12.34 ± 0.12  illegal 0.10  unparsable 0.20  grad 0.219"
    assert caplog.messages == [
        f"step 7/1000  {said}",
        f"step 8/1000  {said}  0:33:04 left",
        f"step 9/1000  {said}  0:49:33 left",
    ]
    assert all(len(f"11:14:00 {line}") <= 100 for line in caplog.messages)


_TRAINER = """
import sys, time
from pathlib import Path
from hanabi_grpo.tracking.mirror import Mirror
started = Mirror(Path(sys.argv[1]), 0)
print(started._process.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_trainer_left_is_sent_with_its_last_adapters(
    tmp_path: Path, start_process: Start
) -> None:
    run = tracked_run(
        tmp_path / "run", steps=3, checkpoints=(3,), WANDB_MODE="offline", WANDB_LOG_MODEL="end"
    )
    trainer = start_process([sys.executable, "-c", _TRAINER, str(run)], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    mirror = psutil.Process(int(trainer.stdout.readline()))
    add_row(run, 4)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert wait_until(lambda: not mirror.is_running(), 120)
    assert [row["step"] for row in history(offline_records(run)) if "score/mean" in row] == [
        1,
        2,
        3,
        4,
    ]
    assert [(name, step) for name, _, step in models(run)] == [("run-adapters", 3)]
    assert (
        json.loads((run / "artifacts/step_3/settings.json").read_text())["settings"][
            "HANABI_API_KEY"
        ]
        is None
    )


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "4")
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "4")
    monkeypatch.setattr(mirror, "MARGIN_SECONDS", 2.0)


def use(service: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def has_ended(started: Mirror) -> bool:
    """Tell whether the mirror and W&B's own process, which is in its group, are gone."""
    try:
        os.killpg(started._process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(("answer", "reason"), [("401", "error 401"), ("no", "permission denied")])
def test_what_the_service_refuses_ends_the_run_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, reason: str
) -> None:
    run = tracked_run(tmp_path / "run", games=False, WANDB_PROJECT="hanabi", WANDB_ENTITY="team")
    with backend(answer) as service:
        use(service, monkeypatch)
        with pytest.raises(
            SettingsError,
            match=rf"WANDB_PROJECT='hanabi' WANDB_ENTITY='team': W&B refuses .*{reason}",
        ):
            Mirror(run, 0)
    assert not (run / "wandb.json").exists()


@pytest.mark.usefixtures("short_limits")
def test_a_service_that_is_away_at_the_start_leaves_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=3, games=False)
    # Nothing is waited for in vain here.
    monkeypatch.setattr(mirror, "MARGIN_SECONDS", 120.0)
    with backend("500") as service, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        use(service, monkeypatch)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with caplog.at_level(logging.INFO):
            started = Mirror(run, 0)
            add_row(run, 4)
            add_checkpoint(run, 4)
            started.close(0)
    assert len(warnings(caplog)) == 1
    assert (
        "does not answer" in warnings(caplog)[0]
        and f"wandb sync {run}/wandb/*run-*" in warnings(caplog)[0]
    )
    [made] = {one.name for one in artifacts(offline_records(run)) if one.kind == "model"}
    assert made == "run-adapters"
    assert ".venv/bin/wandb sync " in caplog.messages[-1]
    assert has_ended(started)


@pytest.mark.usefixtures("short_limits")
def test_a_service_that_fails_during_training_is_reported_once_and_waited_for_in_vain_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=2)
    monkeypatch.setenv("HANABI_API_KEY", SECRET)
    with backend("good") as service:
        use(service, monkeypatch)
        started = Mirror(run, 0)
        assert wait_until(lambda: any(b"score/mean" in body for body in service.bodies), 60)
        assert not warnings(caplog)
        service.mode = "hang"
        for step in range(3, 6):
            add_row(run, step)
            started.check()
        add_checkpoint(run, 5)
        started.close(0)
        bodies = b"".join(service.bodies)
    said = warnings(caplog)
    assert (
        said[-1]
        == f"W&B: not everything was sent (see {run}/wandb.log). Later: .venv/bin/wandb sync "
        f"{run}/wandb/*run-*"
    )
    assert len(said) <= 2, said
    assert has_ended(started)
    assert SECRET.encode() not in bodies and KEY.encode() not in bodies
    assert files_with(run, KEY, SECRET) == []
    assert json.loads((run / "wandb.json").read_text())["mode"] == "online"


@pytest.mark.usefixtures("short_limits")
def test_a_mirror_that_dies_is_reported_when_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", games=False, WANDB_MODE="offline")
    started = Mirror(run, 0)
    started._process.kill()
    started._process.wait()
    started.check()
    started.close(0)
    assert warnings(caplog)[-1].startswith("W&B: not everything was sent")
    assert has_ended(started)
