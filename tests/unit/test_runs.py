import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from doctor_machines import find, only
from hanabi_grpo.commands.doctor.runs import run_folder_checks
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.cut_records import cut_records
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import (
    SECRET,
    holder_of,
    lock_run_folder,
    prepare_run_folder,
    run_folder_name,
    run_secret,
    used_entries,
    write_json_atomic,
)
from hanabi_grpo.settings import Settings
from torn_checkpoints import write as write_checkpoint

NOW = datetime(2026, 1, 31, 9, 5, 7)


def test_a_new_run_gets_a_folder_in_outputs_named_after_preset_or_dataset_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder_name(Settings(dataset="data/hanabi.grpo.jsonl"), NOW) == "hanabi.grpo-20260131-090507"
    folder = prepare_run_folder(Settings(preset="laptop"), NOW)
    assert folder == Path("outputs/laptop-20260131-090507") and folder.is_dir()


def test_a_used_folder_is_refused_with_the_ways_out_and_rests_of_a_start_leave_it_fresh(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = Settings(output_dir=folder)
    assert prepare_run_folder(settings) == folder
    for name in (".lock", "server.log", ".settings.json.x1.tmp"):
        (folder / name).touch()
    assert prepare_run_folder(settings) == folder
    (folder / ".checkpoint-1.partial").mkdir()
    assert used_entries(folder) == [".checkpoint-1.partial"]
    (folder / ".checkpoint-1.partial").rmdir()
    (folder / "settings.json").touch()
    with pytest.raises(RunFolderError) as caught:
        prepare_run_folder(settings)
    assert str(caught.value) == (
        f"OUTPUT_DIR={str(folder)!r}: holds another run already (settings.json). Choose another OUTPUT_DIR, unset it "
        "for a new folder in outputs/, or go on with that run: RESUME=latest"
    )
    with pytest.raises(RunFolderError, match="is a file"):
        prepare_run_folder(Settings(output_dir=folder / "server.log"))
    with pytest.raises(RunFolderError, match="cannot be used"):
        prepare_run_folder(Settings(output_dir=folder / "server.log" / "below"))


def test_a_folder_that_a_living_trainer_holds_is_refused_without_advice_that_ends_it(
    tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    hold = "import sys; from pathlib import Path; from hanabi_grpo.runs.run_folder import lock_run_folder\n"
    hold += f"kept = lock_run_folder(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.read()"
    holder = start_process([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    for name in ("settings.json", "metrics.jsonl"):
        (tmp_path / name).write_text("{}")
    me = f"pid {holder.pid} on {socket.gethostname()}"
    with pytest.raises(RunFolderError) as caught:
        prepare_run_folder(Settings(output_dir=tmp_path))
    assert f"a trainer works in it ({me})" in str(caught.value) and "RESUME" not in str(caught.value)
    for settings in ({}, {"RESUME": "latest"}):
        check = only(find(run_folder_checks, OUTPUT_DIR=tmp_path, **settings))
        assert (check.status, check.finding) == ("fail", f"{tmp_path}: another trainer works in it ({me})")
        assert "unset OUTPUT_DIR" in check.remedy and "RESUME=latest" not in check.remedy
        assert "rm " not in f"{check.remedy}{caught.value}"
    for step in (9, 10):
        write_checkpoint(tmp_path, step)
    with pytest.raises(RunFolderError, match="newer valid checkpoint") as older:
        plan_resume(Settings(resume=str(tmp_path / "checkpoint-9")))
    assert str(older.value).endswith("start a new run from here with OUTPUT_DIR=(a new folder).")
    assert holder.poll() is None
    holder.stdin.close()
    holder.wait()
    assert holder_of(tmp_path) == ""
    with pytest.raises(RunFolderError, match="holds another run already"):
        prepare_run_folder(Settings(output_dir=tmp_path))


def test_a_second_trainer_in_one_run_folder_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    me = f"pid {os.getpid()} on {socket.gethostname()}"
    with lock_run_folder(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{me}\n"
        with pytest.raises(RunFolderError) as caught:
            lock_run_folder(tmp_path)
        assert str(caught.value) == (
            f"{tmp_path}: another trainer works in it ({me}). Stop it, or choose another OUTPUT_DIR."
        )
    lock_run_folder(tmp_path).close()
    with pytest.raises(RunFolderError, match="cannot be locked"):
        lock_run_folder(tmp_path / "none")


def test_a_file_system_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Any, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunFolderError, match=r"cannot be locked \(Function not implemented\)"):
        lock_run_folder(tmp_path)


def test_the_lock_outlives_exec_and_ends_with_kill_9(tmp_path: Path, start_process: Callable[..., Any]) -> None:
    then = "import time; print('running', flush=True); time.sleep(60)"
    first = (
        "import os, sys; from pathlib import Path; from hanabi_grpo.runs.run_folder import lock_run_folder; "
        f"lock = lock_run_folder(Path({str(tmp_path)!r})); "
        f"os.execv(sys.executable, [sys.executable, '-c', {then!r}])"
    )
    process = start_process([sys.executable, "-c", first], stdout=subprocess.PIPE)
    assert process.stdout.readline() == "running\n"
    with pytest.raises(RunFolderError, match=f"pid {process.pid} on"):
        lock_run_folder(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock_run_folder(tmp_path).close()


def test_a_lock_file_that_its_holder_removed_is_not_taken_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, calls = fcntl.flock, []

    def removed_meanwhile(file: Any, operation: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with lock_run_folder(tmp_path) as file:
        assert len(calls) == 2 and os.path.samestat(os.fstat(file.fileno()), (tmp_path / ".lock").stat())


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json_atomic(path, {"step": 1, "loss": float("nan")})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}
    with pytest.raises(TypeError):
        write_json_atomic(path, {"step": object()})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_files_get_the_rights_that_the_umask_leaves_and_the_secret_those_of_its_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json_atomic(tmp_path / "state.json", {})
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
        cut_records(tmp_path, 1)
        secret = run_secret(tmp_path)
    finally:
        os.umask(before)
    rights = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert (rights["state.json"], rights["metrics.jsonl"], rights[SECRET]) == ("0o640", "0o640", "0o600")
    assert (run_secret(tmp_path), len(secret)) == (secret, 64)
    (tmp_path / SECRET).write_text("short")
    with pytest.raises(RunFolderError, match=r"\.run-secret: not 64 hexadecimal digits; remove it, and the next start"):
        run_secret(tmp_path)
