"""Runs at W&B with its real library: recorded on this disk, and its bad days with a stand-in."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pytest
from transformers import TrainerState

from hanabi_grpo.commands import mirror as mirror_command
from hanabi_grpo.commands.mirror import _LOOK_SECONDS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.history import read_history
from hanabi_grpo.runs.manifest import check_checkpoint
from hanabi_grpo.runs.restored_run import restore_run
from hanabi_grpo.runs.run_folder import open_locked
from hanabi_grpo.runs.validation import Validated, write_validations
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking import mirror
from hanabi_grpo.tracking import publisher as publisher_module
from hanabi_grpo.tracking.callback import TrackingCallback
from hanabi_grpo.tracking.mirror import Mirror, unsent_folders
from hanabi_grpo.tracking.publisher import Publisher
from hanabi_grpo.tracking.record import (
    ArtifactRecord,
    WandbRecord,
    is_unfinished,
    read_record,
    write_record,
)
from tracked_runs import SECRET, add_checkpoint, add_row, tracked_run
from waiting import wait_until
from wandb_backend import KEY, Backend, backend
from wandb_files import LoggedArtifact, artifacts, history, offline_records

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("WANDB_", "CKPT_", "UPLOAD_")):
            monkeypatch.delenv(name)
    # A developer's .env is none of these tests'.
    monkeypatch.chdir(tmp_path)


def models(run: Path) -> list[LoggedArtifact]:
    """The adapters that an offline run logged, oldest first."""
    logged = artifacts(offline_records(run))
    return [artifact for artifact in logged if artifact.kind == "model"]


def step_of(artifact: LoggedArtifact) -> int:
    return artifact.metadata["step"]


def score_steps(run: Path) -> list[int]:
    """The steps whose scores an offline run logged."""
    rows = history(offline_records(run))
    return [row["step"] for row in rows if "score/mean" in row]


def mirror_run(run: Path, from_step: int, *, then: Callable[[], object] = lambda: None) -> None:
    """Mirror a run from start to end; `then` happens meanwhile."""
    started = Mirror(run, from_step)
    then()
    started.close(0)


def files_with(folder: Path, *secrets: str) -> list[Path]:
    """The files that hold a secret."""
    leaks = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if any(secret.encode() in content for secret in secrets):
                leaks.append(path)
    return leaks


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
        mirror_run(run, 0, then=lose_then_save)
    records = offline_records(run)
    all_rows = history(records)
    rows = [row for row in all_rows if "score/mean" in row]
    assert [row["step"] for row in rows] == list(range(1, 14))
    assert rows[0]["player_1/reward"] == 1.5
    assert rows[0]["illegal_per_game"] == 0.5
    keys = {key for row in all_rows for key in row}
    assert any("samples/replay" in key for key in keys)
    logged = models(run)
    assert {artifact.name for artifact in logged} == {"team"}
    aliases: dict[int, set[str]] = {12: set(), 13: set()}
    for artifact in logged:
        aliases[step_of(artifact)].update(artifact.aliases)
    assert {"checkpoint_global_step_12", "best"} <= aliases[12]
    assert aliases[13] == {"checkpoint_global_step_13", "latest", "end"}
    files = logged[-1].files
    assert set(files) == {
        "README.md",
        "manifest.json",
        "settings.json",
        "training_score.json",
        "episodes/step_000012.jsonl",
        "player_0/adapter_config.json",
        "player_0/adapter_model.safetensors",
        "player_1/adapter_config.json",
        "player_1/adapter_model.safetensors",
    }
    assert all(path.is_file() for path in files.values()), "wandb sync needs them later"
    names = [record.run.display_name for record in records if record.HasField("run")]
    assert names[0] == "one"
    assert files_with(run, KEY, SECRET) == []
    [folder] = unsent_folders(run)
    assert caplog.messages[-1].endswith(f".venv/bin/wandb sync {folder}")


@pytest.mark.rest
def test_logging_steps_joins_rows_for_wandb_up_to_the_last_of_the_run(tmp_path: Path) -> None:
    variables = {"WANDB_MODE": "offline", "HANABI_PRESET": "laptop", "LOGGING_STEPS": "5"}
    run = tracked_run(tmp_path / "run", steps=12, checkpoints=(12,), **variables)
    scores = {row["step"]: row["score/mean"] for row in read_history(run / "metrics.jsonl")}
    mirror_run(run, 0)
    rows = [row for row in history(offline_records(run)) if "score/mean" in row]
    expected = {}
    for last, steps in ((5, range(1, 6)), (10, range(6, 11)), (12, range(11, 13))):
        expected[last] = pytest.approx(fmean([scores[step] for step in steps]))
    assert {row["step"]: row["score/mean"] for row in rows} == expected


class RecordingRun:
    """Stands for a run at W&B, and keeps its rows and artifacts."""

    mode = "offline"
    url = ""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.artifacts: list[tuple[str, set[str]]] = []
        """Folder name and aliases of each artifact."""
        self.broken_from: int | None = None
        """Step of the first row that is refused."""

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in self.rows]

    def log_row(self, row: dict[str, Any]) -> None:
        if self.broken_from is not None and row["step"] >= self.broken_from:
            raise OSError("the service is away")
        self.rows.append(row)

    def log_artifact(
        self, folder: Path, name: str, aliases: list[str], metadata: dict[str, Any]
    ) -> None:
        self.artifacts.append((folder.name, set(aliases)))

    def log_samples(self, step: int, page: str) -> None:
        pass

    def save_files(self, folder: Path, names: tuple[str, ...]) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        pass


def publisher_of(
    run: Path, from_step: int, trouble: Callable[[str], None] = pytest.fail
) -> tuple[Publisher, RecordingRun]:
    """Return what a new process publishes a run with, and where it publishes it."""
    recording = RecordingRun()
    publisher = Publisher(
        run=recording,  # type: ignore[arg-type]
        record=read_record(run),
        settings=read_settings(run / "settings.json"),
        run_folder=run,
        from_step=from_step,
        games_page=lambda *_: "",
        trouble=trouble,
    )
    return publisher, recording


def test_what_died_with_all_processes_is_sent_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_ARRIVAL_SECONDS", 0.0)
    run = tracked_run(tmp_path / "run", steps=4, checkpoints=(2,), games=False)
    publisher, recording = publisher_of(run, 0)
    publisher.publish_new()
    assert recording.steps == [1, 2, 3, 4]
    # The machine dies after two further steps and the best checkpoint.
    add_row(run, 5)
    add_row(run, 6)
    add_checkpoint(run, 6)

    publisher, recording = publisher_of(run, 6)
    publisher.publish_new()
    add_row(run, 7, **{"score/mean": 0.0})
    add_checkpoint(run, 7)
    assert publisher.close(0)
    assert recording.steps == [5, 6, 7]
    # The upload of step 2 may have been going on.
    assert recording.artifacts == [
        ("step_2", {"checkpoint_global_step_2", "best"}),
        ("step_6", {"checkpoint_global_step_6", "best"}),
        ("step_7", {"checkpoint_global_step_7"}),
        ("step_7", {"checkpoint_global_step_7", "latest", "end"}),
    ]
    record = read_record(run)
    assert (record.sent_step, record.is_complete) == (7, True)
    assert all(artifact.is_sent for artifact in record.artifacts)

    publisher, recording = publisher_of(run, 7)
    assert publisher.close(0)
    assert (recording.steps, recording.artifacts) == ([], [])


def test_the_end_of_a_run_that_died_after_its_last_step_is_sent_by_a_later_start(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "run", steps=3, games=False, WANDB_LOG_MODEL="end")
    publisher_of(run, 0)[0].publish_new()
    add_checkpoint(run, 3)
    assert is_unfinished(run)
    publisher, recording = publisher_of(run, 3)
    assert publisher.close(0)
    # The rows had just been handed over, so they may not have arrived.
    assert recording.steps == [1, 2, 3]
    assert recording.artifacts == [
        ("step_3", {"checkpoint_global_step_3", "best", "latest", "end"})
    ]
    assert not is_unfinished(run)


def test_rows_after_a_failure_do_not_count_as_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_ARRIVAL_SECONDS", 0.0)
    run = tracked_run(tmp_path / "run", steps=2, games=False)
    said: list[str] = []
    publisher, recording = publisher_of(run, 0, said.append)
    publisher.publish_new()
    recording.broken_from = 3
    add_row(run, 3)
    publisher.publish_new()
    recording.broken_from = None
    add_row(run, 4)
    assert not publisher.close(0)
    assert said == ["metrics did not reach W&B (the service is away)"]
    assert recording.steps == [1, 2, 4]
    publisher, recording = publisher_of(run, 4)
    assert publisher.close(0)
    assert recording.steps == [3, 4]


def test_wandb_has_what_a_run_was_restored_from(tmp_path: Path) -> None:
    variables = {"UPLOAD_CKPT_TO_WANDB": "full"}
    run = tracked_run(tmp_path / "run", steps=2, checkpoints=(2,), games=False, **variables)
    publisher, _ = publisher_of(run, 0)
    publisher.publish_new()
    here = tmp_path / "here"
    restore_run(run / "artifacts/step_2", here, resume="wandb:team/hanabi/laptop:v0")
    publisher, recording = publisher_of(here, 2)
    publisher.publish_new()
    add_row(here, 3)
    assert publisher.close(0)
    assert recording.artifacts == []
    assert recording.steps[-1] == 3


def test_a_version_that_noted_nothing_is_believed(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=3, checkpoints=(2,), games=False)
    document = {
        "id": "abcd1234",
        "artifacts": [
            {
                "step": 2,
                "name": "run-adapters",
                "aliases": ["checkpoint_global_step_2", "latest", "end"],
                "folder": "artifacts/step_2",
                "mode": "offline",
            }
        ],
    }
    (run / "wandb.json").write_text(json.dumps(document))
    assert not is_unfinished(run)
    publisher, recording = publisher_of(run, 2)
    assert publisher.close(0)
    assert (recording.steps, recording.artifacts) == ([3], [])


def test_wandb_gets_the_whole_interval_in_which_a_run_was_resumed(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=9, games=False, LOGGING_STEPS="4")
    write_record(run, WandbRecord(id="abcd1234", sent_step=6))
    publisher, recording = publisher_of(run, 6)
    publisher.publish_new()
    # The scores of steps 5 to 8 are 1.4 to 1.7.
    [row] = recording.rows
    assert (row["step"], row["seconds"]) == (8, 16.0)
    assert row["score/mean"] == pytest.approx(1.55)
    publisher.publish_new(everything=True)
    assert [row["step"] for row in recording.rows] == [8, 9]
    assert recording.rows[-1]["score/mean"] == pytest.approx(1.8)


CANARIES = {
    "HANABI_API_KEY": SECRET,
    "HANABI_PARTNER_KEY": "canary-of-a-paid-model",
    "HF_TOKEN": "canary-of-the-hub",
    "OPENAI_API_KEY": "canary-of-another-model",
    "AWS_ACCESS_KEY_ID": "canary-of-a-cloud",
    "AWS_SECRET_ACCESS_KEY": "canary-of-a-cloud",
    "GOOGLE_APPLICATION_CREDENTIALS": "/canary.json",
    "PGPASSWORD": "canary-of-a-database",
    "DATABASE_URL": "postgres://me:canary@db/runs",
}


def environ_of(process: psutil.Process) -> dict[str, str]:
    """Read what a process was started with from the kernel."""
    content = Path(f"/proc/{process.pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in content.split("\0") if "=" in entry)


@pytest.mark.rest
def test_no_process_of_wandb_is_given_a_secret_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"WANDB_MODE": "offline", "HANABI_PARTNER_URLS": "big=http://127.0.0.1:9/v1#m"}
    run = tracked_run(tmp_path / "run", games=False, **variables)
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pass@127.0.0.1:9")
    # Other tests' servers may be children of this process as well.
    others = {process.pid for process in psutil.Process().children(recursive=True)}
    environs: dict[str, dict[str, str]] = {}

    def look() -> None:
        for process in psutil.Process().children(recursive=True):
            if process.pid not in others:
                environs[process.name()] = environ_of(process)

    mirror_run(run, 0, then=look)
    assert "wandb-core" in environs, "W&B's own process"
    assert len(environs) >= 2, "and the mirror"
    for name, environ in environs.items():
        assert environ.keys() & CANARIES.keys() == set(), name
        assert not any("canary" in value for value in environ.values()), name
        assert environ["WANDB_API_KEY"] == KEY, "W&B's own key is for W&B"
        assert environ["HTTPS_PROXY"] == "http://me:pass@127.0.0.1:9", "no network without it"
        assert environ["PATH"] == os.environ["PATH"]
    assert score_steps(run) == [1, 2, 3], "it works without them"


@pytest.mark.rest
@pytest.mark.parametrize(
    ("log_model", "expected"),
    [
        ("checkpoint", [{"checkpoint_global_step_2"}, {"checkpoint_global_step_3"}]),
        ("end", [{"checkpoint_global_step_3", "end"}]),
        ("true", [{"checkpoint_global_step_3", "end"}]),
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
    mirror_run(run, 0)
    # W&B's library itself adds `latest` to everything.
    aliases = [set(artifact.aliases) - {"best", "latest"} for artifact in models(run)]
    assert aliases == expected


def test_logs_of_both_processes_are_files_of_the_run(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=1, games=False, WANDB_MODE="offline")
    (run / "train.log").write_text("the trainer's\n")
    (run / "server.log").write_text("the server's\n")
    mirror_run(run, 0)
    [files] = (run / "wandb").glob("offline-run-*/files")
    logs = {path.name: path.read_text() for path in files.glob("*.log")}
    assert logs == {"train.log": "the trainer's\n", "server.log": "the server's\n"}


def test_a_run_is_resumed_from_what_wandb_would_send_of_a_full_upload(tmp_path: Path) -> None:
    variables = {"WANDB_MODE": "offline", "UPLOAD_CKPT_TO_WANDB": "full"}
    run = tracked_run(tmp_path / "run", steps=2, checkpoints=(2,), games=False, **variables)
    mirror_run(run, 0)
    downloaded = tmp_path / "downloaded"
    for name, path in models(run)[-1].files.items():
        (downloaded / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, downloaded / name)
    here = tmp_path / "here"
    restore_run(downloaded, here, resume="wandb:team/hanabi/laptop:v0")
    check_checkpoint(here / "checkpoint-2")
    assert (here / "metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()
    # It goes on as the same run at W&B.
    assert read_record(here).id == read_record(run).id


@pytest.mark.rest
@pytest.mark.parametrize("log_model", ["checkpoint", "end"])
def test_the_best_is_the_version_that_validation_chose_and_the_last_one_stays_the_latest(
    tmp_path: Path, log_model: str
) -> None:
    run = tracked_run(
        tmp_path / "run",
        steps=2,
        checkpoints=(2,),
        games=False,
        HANABI_EVAL_STEPS="2",
        SAVE_STEPS="2",
        WANDB_MODE="offline",
        WANDB_LOG_MODEL=log_model,
        UPLOAD_CKPT_TO_WANDB="true",
    )

    def validate(*scores: float) -> None:
        """Write the validations of steps 0, 2, 4, …"""
        validations = []
        for number, score in enumerate(scores):
            validations.append(Validated(step=2 * number, score=score, se=0.1))
        write_validations(run, validations)

    def train() -> None:
        time.sleep(3 * _LOOK_SECONDS)
        assert models(run) == [], "the validation of step 2 is still going on"
        validate(1.0, 3.0)
        add_row(run, 3, **{"score/mean": 9.0})
        validate(1.0, 3.0, 2.0)
        add_row(run, 4, **{"score/mean": 9.0})
        add_checkpoint(run, 4)

    mirror_run(run, 0, then=train)
    first, *others = models(run)
    assert step_of(first) == 2
    assert set(first.aliases) - {"latest"} == {"checkpoint_global_step_2", "best"}
    assert [step_of(artifact) for artifact in others] == (
        [4, 4] if log_model == "checkpoint" else [4]
    )
    assert all("best" not in artifact.aliases for artifact in others)
    rows = history(offline_records(run))
    name = "validation/score/mean"
    assert [row[name] for row in rows if name in row] == [2.0], "no row of metrics has it"


@pytest.mark.rest
@pytest.mark.parametrize("has_opponents", [True, False])
def test_of_several_curves_the_one_that_chooses_says_what_is_best_in_a_zero_sum_game(
    tmp_path: Path, has_opponents: bool
) -> None:
    variables = {
        "HANABI_ENV": "kuhn_poker",
        "HANABI_EVAL_STEPS": "2",
        "SAVE_STEPS": "2",
        "WANDB_MODE": "offline",
    }
    run = tracked_run(tmp_path / "run", steps=4, checkpoints=(2, 4), games=False, **variables)
    rows = []
    for step, chosen, other in ((0, 0.0, 9.0), (2, 0.5, 1.0), (4, 0.25, 2.0)):
        rows.append(
            Validated(
                step=step, score=chosen, se=0.1, curve="served,cfr", has_opponents=has_opponents
            )
        )
        rows.append(Validated(step=step, score=other, se=0.1, chooses=False))
    write_validations(run, rows)
    mirror_run(run, 0)
    best = [step_of(artifact) for artifact in models(run) if "best" in artifact.aliases]
    # In self-play a zero-sum game has no best version; against an opponent it has.
    assert best == ([2] if has_opponents else [])
    [row] = [row for row in history(offline_records(run)) if "validation/score/mean" in row]
    assert (row["validation/score/mean"], row["validation/served,cfr/score/mean"]) == (2.0, 0.25)


@pytest.mark.rest
def test_a_resumed_run_goes_on_under_its_id_with_the_steps_that_are_new(tmp_path: Path) -> None:
    run = tracked_run(
        tmp_path / "run", steps=2, checkpoints=(2,), games=False, WANDB_MODE="offline"
    )
    mirror_run(run, 0)
    first = read_record(run)
    mirror_run(run, 2, then=lambda: add_row(run, 3))
    records = offline_records(run)
    assert {record.run.run_id for record in records if record.HasField("run")} == {first.id}
    assert score_steps(run) == [1, 2, 3]
    assert [artifact.step for artifact in read_record(run).artifacts] == [2]


_SILENT = """
import sys
from pathlib import Path
from statistics import fmean
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
    process = subprocess.run(
        [sys.executable, "-c", _SILENT, str(run)], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == "[]"
    assert sorted(path.name for path in run.iterdir()) == [
        "metrics.jsonl",
        "settings.json",
        "train.log",
    ]
    printed = process.stdout.removesuffix("[]\n") + process.stderr
    log = printed + (run / "train.log").read_text()
    assert "step 1/1" in log
    assert not re.search(r"wandb|W&B", log, re.IGNORECASE), log


def test_the_line_of_a_step_fits_100_columns_and_counts_what_is_left_from_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("hanabi_grpo.tracking.terminal_monitor.time.time", lambda: clock[0])
    run = tracked_run(tmp_path / "run", steps=0, games=False, REPORT_TO="none")
    tracking = TrackingCallback(read_settings(run / "settings.json"), run)
    state = TrainerState(max_steps=1000)
    metrics = {
        "games": 16.0,
        "score/mean": -12.34,
        "score/se": 0.12,
        "illegal_per_game": 0.1,
        "unparsable_per_game": 0.2,
        "grad_norm": 0.219,
        "loss": -0.0123,
    }
    caplog.set_level("INFO")
    for step, seconds in ((7, 500), (8, 2), (9, 4)):
        clock[0] += seconds
        state.global_step = step
        tracking.on_log(None, state, None, metrics)
    figures = "score -12.34 ± 0.12  illegal 0.10  unparsable 0.20  grad 0.219"
    assert caplog.messages == [
        f"step 7/1000  {figures}",
        f"step 8/1000  {figures}  0:33:04 left",
        f"step 9/1000  {figures}  0:49:33 left",
    ]
    assert all(len(f"11:14:00 {line}") <= 100 for line in caplog.messages)


def test_the_line_of_a_zero_sum_run_shows_exploitability_and_no_seats_return(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kuhn = {"HANABI_ENV": "kuhn_poker", "HANABI_PRESET": "kuhn_poker", "REPORT_TO": "none"}
    run = tracked_run(tmp_path / "run", steps=0, games=False, **kuhn)
    tracking = TrackingCallback(read_settings(run / "settings.json"), run)
    state = TrainerState(max_steps=150)
    metrics = {
        "games": 128.0,
        "score/mean": -0.02,
        "score/se": 0.13,
        "illegal_per_game": 0.0,
        "grad_norm": 0.2,
        "loss": 0.1,
    }
    caplog.set_level("INFO")
    state.global_step = 19
    tracking.on_log(None, state, None, metrics)
    state.global_step = 150
    tracking.on_log(None, state, None, {**metrics, "exploitability": 0.2071})
    assert caplog.messages == [
        "step 19/150  illegal 0.00  grad 0.200",
        "step 150/150  exploitability 0.207  illegal 0.00  grad 0.200",
    ]


_TRAINER = """
import sys, time
from pathlib import Path
from statistics import fmean
from hanabi_grpo.tracking.mirror import Mirror
started = Mirror(Path(sys.argv[1]), 0)
print(started._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.rest
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
    assert score_steps(run) == [1, 2, 3, 4]
    [artifact] = models(run)
    assert artifact.name == "run-adapters"
    assert step_of(artifact) == 3
    settings = json.loads((run / "artifacts/step_3/settings.json").read_text())
    assert settings["settings"]["HANABI_API_KEY"] is None


@pytest.mark.rest
def test_what_a_killed_machine_left_is_sent_by_the_next_mirror(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=2, games=False, WANDB_MODE="offline")
    started = Mirror(run, 0)
    add_row(run, 3)
    add_checkpoint(run, 3)
    started._kill()
    assert has_ended(started)
    mirror_run(run, 3, then=lambda: add_row(run, 4))
    # What the first one wrote before it was killed may be there twice.
    assert set(score_steps(run)) == {1, 2, 3, 4}
    newest = models(run)[-1]
    assert step_of(newest) == 3
    assert {"latest", "end"} <= set(newest.aliases)


def test_a_mirror_begins_when_that_of_the_trainer_before_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tracked_run(tmp_path / "run", steps=2, games=False, WANDB_MODE="offline")
    with open_locked(run / ".wandb.lock"):
        # The trainer does not wait for it.
        started = Mirror(run, 0)
        assert caplog.messages == [
            "W&B: still sending the previous trainer's records; this run follows"
        ]
        # What the other mirror has written down is known to this one.
        record = read_record(run)
        record.artifacts = [
            ArtifactRecord(step=1, name="n", aliases=[], folder="artifacts/step_1", mode="offline")
        ]
        write_record(run, record)
    started.close(0)
    assert score_steps(run) == [1, 2]
    assert read_record(run).id == record.id
    assert [artifact.step for artifact in read_record(run).artifacts] == [1]


def test_a_mirror_that_another_one_keeps_from_its_run_says_so_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1")
    monkeypatch.setattr(mirror_command, "MARGIN_SECONDS", 0.0)
    monkeypatch.setattr(mirror_command, "_LOOK_SECONDS", 0.1)
    said: list[str] = []
    with open_locked(tmp_path / ".wandb.lock"):
        lock = mirror_command._lock_when_free(tmp_path, lambda kind, text: said.append(kind))
    assert lock is None
    assert said == ["waiting"]


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "4")
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "4")
    monkeypatch.setattr(mirror, "MARGIN_SECONDS", 2.0)


def use_service(service: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in records]


def has_ended(started: Mirror) -> bool:
    """Tell whether the mirror and W&B's own process, which is in its group, are gone."""
    try:
        os.killpg(started._process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.rest
@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize(("answer", "reason"), [("401", "error 401"), ("no", "permission denied")])
def test_what_the_service_refuses_ends_the_run_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, reason: str
) -> None:
    run = tracked_run(tmp_path / "run", games=False, WANDB_PROJECT="hanabi", WANDB_ENTITY="team")
    with backend(answer) as service:
        use_service(service, monkeypatch)
        with pytest.raises(
            SettingsError,
            match=rf"WANDB_PROJECT='hanabi' WANDB_ENTITY='team': W&B refuses .*{reason}",
        ):
            Mirror(run, 0)
    assert not (run / "wandb.json").exists()


@pytest.mark.rest
@pytest.mark.usefixtures("short_limits")
def test_a_service_that_is_away_at_the_start_leaves_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=3, games=False)
    # No wait is in vain here.
    monkeypatch.setattr(mirror, "MARGIN_SECONDS", 120.0)
    with backend("500") as service, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        use_service(service, monkeypatch)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with caplog.at_level(logging.INFO):
            started = Mirror(run, 0)
            add_row(run, 4)
            add_checkpoint(run, 4)
            started.close(0)
    [warning] = warnings(caplog)
    assert "does not answer" in warning
    assert f"wandb sync {run}/wandb/*run-*" in warning
    assert {artifact.name for artifact in models(run)} == {"run-adapters"}
    assert ".venv/bin/wandb sync " in caplog.messages[-1]
    assert has_ended(started)


@pytest.mark.rest
@pytest.mark.usefixtures("short_limits")
def test_a_service_that_fails_during_training_is_reported_once_and_waited_for_in_vain_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=2)
    monkeypatch.setenv("HANABI_API_KEY", SECRET)
    with backend("good") as service:
        use_service(service, monkeypatch)
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
    reported = warnings(caplog)
    assert len(reported) <= 2, reported
    assert reported[-1] == (
        f"W&B: not everything was sent (see {run}/wandb.log). To send it later: .venv/bin/wandb "
        f"sync {run}/wandb/*run-*"
    )
    assert has_ended(started)
    assert SECRET.encode() not in bodies
    assert KEY.encode() not in bodies
    assert files_with(run, KEY, SECRET) == []
    assert json.loads((run / "wandb.json").read_text())["mode"] == "online"


@pytest.mark.rest
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
