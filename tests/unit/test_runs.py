"""The run folder: who holds it, what commands take for a run, and that its files stay whole."""

import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import find, only
from hanabi_grpo.cli import app
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.doctor.machine import run_folder_checks
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.runs.history import IncidentLog, cut_records
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import (
    SECRET,
    find_run,
    holder_of,
    lock_run_folder,
    new_folder,
    prepare_run_folder,
    public_run,
    run_folder_name,
    run_identity,
    run_secret,
    used_entries,
    write_json_atomic,
)
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings import Settings
from server_app import PEFT_CONFIG, PLAYERS, RunningApp, adapter_bytes, running_app, session_body
from torn_checkpoints import write
from tracked_runs import tracked_run

NOW = datetime(2026, 1, 31, 9, 5, 7)


def test_a_new_run_gets_a_folder_in_outputs_named_after_preset_or_dataset_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = run_folder_name(Settings(dataset="data/hanabi.grpo.jsonl"), NOW)
    assert name == "hanabi.grpo-20260131-090507"
    folder = prepare_run_folder(Settings(preset="laptop"), NOW)
    assert folder == Path("outputs/laptop-20260131-090507")
    assert folder.is_dir()


def test_what_a_start_left_in_a_folder_leaves_it_fresh(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = Settings(output_dir=folder)
    assert prepare_run_folder(settings) == folder
    for name in (".lock", "server.log", ".settings.json.x1.tmp"):
        (folder / name).touch()
    assert prepare_run_folder(settings) == folder
    (folder / ".checkpoint-1.partial").mkdir()
    assert used_entries(folder) == [".checkpoint-1.partial"]


def test_a_used_folder_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.json").touch()
    with pytest.raises(RunFolderError) as caught:
        prepare_run_folder(Settings(output_dir=folder))
    assert str(caught.value) == (
        f"OUTPUT_DIR={str(folder)!r}: already holds another run (settings.json). Choose another "
        "OUTPUT_DIR, unset it for a new folder in outputs/, or continue that run: RESUME=latest"
    )


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "server.log").touch()
    with pytest.raises(RunFolderError, match="is a file"):
        prepare_run_folder(Settings(output_dir=folder / "server.log"))
    with pytest.raises(RunFolderError, match="cannot be used"):
        prepare_run_folder(Settings(output_dir=folder / "server.log" / "below"))


HOLD = """
import sys
from pathlib import Path
from hanabi_grpo.runs.run_folder import lock_run_folder
lock = lock_run_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
"""Holds a run folder until its input ends."""
HOLD_AND_EXEC = """
import os
import sys
from pathlib import Path
from hanabi_grpo.runs.run_folder import lock_run_folder
lock = lock_run_folder(Path(sys.argv[1]))
then = "import time; print('running', flush=True); time.sleep(60)"
os.execv(sys.executable, [sys.executable, "-c", then])
"""
"""Takes a run folder and becomes another program, as the command becomes the trainer."""


def test_a_folder_that_a_living_trainer_holds_is_refused_without_advice_that_ends_it(
    tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    holder = start_process(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == "held\n"
    for name in ("settings.json", "metrics.jsonl"):
        (tmp_path / name).write_text("{}")
    name = f"pid {holder.pid} on {socket.gethostname()}"
    with pytest.raises(RunFolderError) as caught:
        prepare_run_folder(Settings(output_dir=tmp_path))
    refusal = str(caught.value)
    assert f"a trainer works in it ({name})" in refusal
    assert "RESUME" not in refusal
    assert "rm " not in refusal
    for settings in ({}, {"RESUME": "latest"}):
        check = only(find(run_folder_checks, OUTPUT_DIR=tmp_path, **settings))
        assert check.status == "fail"
        assert check.finding == f"{tmp_path}: another trainer is using it ({name})"
        assert "unset OUTPUT_DIR" in check.remedy
        assert "RESUME=latest" not in check.remedy
        assert "rm " not in check.remedy
    for step in (9, 10):
        write(tmp_path, step)
    with pytest.raises(RunFolderError, match="newer valid checkpoint") as older:
        plan_resume(Settings(resume=str(tmp_path / "checkpoint-9")))
    assert str(older.value).endswith("start a new run from here with OUTPUT_DIR=(a new folder).")
    assert holder.poll() is None
    holder.stdin.close()
    holder.wait()
    assert holder_of(tmp_path) == ""
    with pytest.raises(RunFolderError, match="already holds another run"):
        prepare_run_folder(Settings(output_dir=tmp_path))


def test_the_lock_outlives_exec_and_ends_with_kill_9(
    tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    process = start_process(
        [sys.executable, "-c", HOLD_AND_EXEC, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == "running\n"
    with pytest.raises(RunFolderError, match=f"pid {process.pid} on"):
        lock_run_folder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock_run_folder(tmp_path).close()


def test_who_looks_for_the_holder_keeps_no_trainer_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").write_text("pid 1 on elsewhere\n")
    with (tmp_path / ".lock").open() as looking:
        # As `holder_of` of another process does while `hanabi-grpo watch` draws.
        fcntl.flock(looking, fcntl.LOCK_SH)
        pauses: list[float] = []

        def stop_looking(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(looking, fcntl.LOCK_UN)

        monkeypatch.setattr("hanabi_grpo.runs.run_folder.time.sleep", stop_looking)
        lock_run_folder(tmp_path).close()
    assert pauses == [0.05]
    assert (tmp_path / ".lock").read_text() == f"pid {os.getpid()} on {socket.gethostname()}\n"


def test_a_lock_file_that_its_holder_removed_is_not_taken_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    calls = []

    def remove_before_the_first_lock(file: Any, operation: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_before_the_first_lock)
    with lock_run_folder(tmp_path) as file:
        assert len(calls) == 2
        assert os.path.samestat(os.fstat(file.fileno()), (tmp_path / ".lock").stat())


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json_atomic(path, {"step": 1, "loss": float("nan")})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}
    with pytest.raises(TypeError):
        write_json_atomic(path, {"step": object()})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_folder_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    with new_folder(target) as folder:
        (folder / "weights").write_text("old")
    replace = os.replace

    def refuse_the_new_one(source: Path, goal: Path) -> None:
        if source.name == "new":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, goal)

    monkeypatch.setattr(os, "replace", refuse_the_new_one)
    with pytest.raises(OSError, match="Input/output error"), new_folder(target) as folder:
        (folder / "weights").write_text("new")
    assert (target / "weights").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_folder_gets_its_name_when_all_of_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    replace = os.replace

    def rename(source: Path, goal: Path) -> None:
        calls.append("rename")
        replace(source, goal)

    monkeypatch.setattr(os, "replace", rename)
    with new_folder(tmp_path / "model") as folder:
        (folder / "player_0").mkdir()
        (folder / "player_0/weights").touch()
        (folder / "card").touch()
    # Two files and two folders, and after the rename the folder that has the name.
    assert calls == ["fsync"] * 4 + ["rename", "fsync"]


def test_files_get_the_rights_that_the_umask_leaves_and_the_secret_those_of_its_user(
    tmp_path: Path,
) -> None:
    before = os.umask(0o027)
    try:
        write_json_atomic(tmp_path / "state.json", {})
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
        cut_records(tmp_path, 1)
        secret = run_secret(tmp_path)
    finally:
        os.umask(before)
    rights = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert rights["state.json"] == "0o640"
    assert rights["metrics.jsonl"] == "0o640"
    assert rights[SECRET] == "0o600"
    assert run_secret(tmp_path) == secret
    assert len(secret) == 64


def test_a_secret_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / SECRET).write_text("short")
    refusal = r"\.run-secret: not 64 hexadecimal digits; remove it, and the next start"
    with pytest.raises(RunFolderError, match=refusal):
        run_secret(tmp_path)


def test_an_incident_is_a_line_a_warning_and_a_count_and_never_ends_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = IncidentLog(tmp_path)
    nowhere = IncidentLog(tmp_path / "gone")
    with caplog.at_level(logging.WARNING, logger="hanabi_grpo.runs.history"):
        log.record("server_gone", "the games of version 3: connection refused", version=3)
        nowhere.record("save_failed", "no space")
    [line] = (tmp_path / "incidents.jsonl").read_text().splitlines()
    incident = json.loads(line)
    assert incident["kind"] == "server_gone"
    assert incident["version"] == 3
    assert incident["time"] > 1e9
    assert log.counts == {"server_gone": 1}
    assert nowhere.counts == {"save_failed": 1}
    assert "server_gone: the games of version 3: connection refused" in caplog.text
    assert "incidents.jsonl cannot be written (No such file or directory)" in caplog.text


def invoke(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_checkpoints_and_resumes_find_it_too_and_a_run_stays_itself(tmp_path: Path) -> None:
    outer = tmp_path / "demo"
    tracked_run(outer / "train", checkpoints=(3,), games=False)
    assert newest_checkpoint(outer) == outer / "train" / "checkpoint-3"
    plan = plan_resume(Settings(resume=str(outer)))
    assert plan is not None and (plan.run_folder, plan.step) == (outer / "train", 3)
    # A run that has something called train/ in it is still the run.
    shutil.copytree(outer / "train", outer / "train" / "train")
    assert newest_checkpoint(outer / "train") == outer / "train" / "checkpoint-3"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tracked_run(tmp_path / "outputs" / "mine", games=False)


def serve(run: Path, app: RunningApp) -> None:
    """Push adapters as the run's trainer."""
    with RolloutClient(app.url) as client:
        body = session_body(app.identity, run_id=run_identity(run))
        # The client says these two itself.
        del body["protocol"]
        del body["trainer_id"]
        client.open_session(**body)
        adapters = {}
        for number, name in enumerate(PLAYERS):
            adapters[name] = (adapter_bytes(number + 0.5), PEFT_CONFIG)
        client.push(1, adapters)
        client.release()


def fill_with_adapters(partial: Path) -> None:
    """Write the adapters that `serve` pushes into a checkpoint."""
    for number, name in enumerate(PLAYERS):
        folder = partial / name
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(PEFT_CONFIG))
        (folder / "adapter_model.safetensors").write_bytes(adapter_bytes(number + 0.5))


def test_what_a_runs_trainer_serves_and_its_checkpoints_leave_their_evaluations_with_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_app(max_lora_rank=8) as server:
        serve(run, server)
        facts = server.identity.model_dump(
            include={"model_fingerprint", "tokenizer_hash", "chat_hash"}
        )
        write_checkpoint(run, 1, fill_with_adapters, facts, needed_bytes=1000)
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        options = ("--preset", "laptop", "--tasks", 12)
        for arguments in (
            ("served", "--out", tmp_path / "after.json"),
            (run,),
            ("base",),
            ("served,iggi", "iggi"),
        ):
            invoke("evaluate", *arguments, *options)
            # Again is the same evaluation, and no second file.
            invoke("evaluate", *arguments, *options)
        kept = sorted((run / "evaluations").iterdir())
        results = [read_result(path) for path in kept]
        lineups = sorted(result.lineup for result in results)
        assert lineups == sorted(["served", str(run), "base", "served,iggi"])
        assert read_result(tmp_path / "after.json") in results
        # One that is written into the run anyway is there once.
        invoke("evaluate", "served", *options, "--temperature", 0, "--out", run / "greedy.json")
        assert sorted((run / "evaluations").iterdir()) == kept
        exported = invoke("export", run, "--out", tmp_path / "hub")
    evaluations = find_evaluations(run)
    assert len(evaluations.results) == 5 and evaluations.problems == ()
    assert "How well it plays" not in (tmp_path / "hub" / "README.md").read_text(), exported.output


def test_a_run_that_is_not_here_has_no_folder(run: Path, tmp_path: Path) -> None:
    name = public_run(run_identity(run))
    assert find_run(name) == run.resolve()
    moved = run.rename(tmp_path / "outputs" / "moved")
    for other in (None, "0123456789ab", name):
        assert find_run(other) is None
    assert find_run(public_run(run_identity(moved))) == moved.resolve()
