"""Run folders whose files block, have no end, or hold absurd numbers: commands say so and end."""

import contextlib
import io
import json
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from typer.testing import CliRunner

from hanabi_grpo import files
from hanabi_grpo.cli import app
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, SettingsError
from hanabi_grpo.files import open_plain_to_append, read_bytes
from hanabi_grpo.logs import set_up_logging
from hanabi_grpo.report import run_page
from hanabi_grpo.runs.checkpoints import find_checkpoint
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.evaluation_result import read_result, result_to_json
from hanabi_grpo.runs.history import cut_records, read_history
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.runs.resume import plan_resume, read_resume
from hanabi_grpo.runs.resume_settings import read_saved_settings
from hanabi_grpo.runs.run_folder import (
    append_jsonl,
    holder_of,
    lock_run_folder,
    run_identity,
    run_secret,
)
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.runs.validation import read_validations
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking.record import read_record
from tracked_runs import add_row, tracked_run
from training_runs import LAPTOP, evaluate_scripted

_SECONDS = 60
"""Time limit of a test: a blocked open is interrupted."""
_MORE_MEMORY = 3 << 30
"""Bytes of address space beyond what the process has: a file without an end fills them."""
KINDS = ("fifo", "endless", "socket", "folder", "huge")


class _BlockedError(Exception):
    """A test stood still; no `except OSError` catches it."""


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Interrupt a test that blocks, and limit the memory of one that reads for ever."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _BlockedError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    previous = signal.signal(signal.SIGALRM, interrupt)
    # Again and again: a caller may have a second file to open.
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def spoil(path: Path, kind: str) -> None:
    """Put something that is no plain file of a sane size in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        # A hole: it takes no room on the disk.
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)


def run_command(*arguments: str | Path) -> str:
    """Return what a command prints; it ends with an exit code of its own, not with a traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_plain_or_has_no_end_is_refused_with_what_it_is(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "file"
    spoil(path, kind)
    words = {
        "fifo": "not a plain file but a FIFO",
        "endless": "not a plain file but a device",
        "socket": "not a plain file but a FIFO or a socket",
        "folder": "Is a directory",
        "huge": "longer than 1000 bytes, the limit for such a file",
    }
    with pytest.raises(OSError, match=words[kind]) as caught:
        read_bytes(path, 1000)
    assert caught.value.filename == str(path)
    if kind != "huge":
        with pytest.raises(OSError, match=words[kind].partition(" or ")[0]):
            open_plain_to_append(path)


def test_a_file_may_have_as_many_bytes_as_the_limit_says_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    assert read_bytes(path, 5, start=3) == b"45"
    with pytest.raises(OSError, match="longer than 4 bytes"):
        read_bytes(path, 4)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_bytes(link, 5) == b"12345"


def test_a_file_that_grows_while_it_is_read_meets_the_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Growing(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            with path.open("ab") as file:
                file.write(b"more")
            return super().read(size)

    path = tmp_path / "file"
    path.write_bytes(b"some")
    monkeypatch.setattr(files, "_CHUNK", 4)
    monkeypatch.setattr(files.io, "FileIO", Growing)
    with pytest.raises(OSError, match="longer than 40 bytes"):
        read_bytes(path, 40)


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["fifo", "huge"])
@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "incidents.jsonl",
        "settings.json",
        "validation.json",
        "evaluations/one.json",
        "episodes/step_000003.jsonl",
        ".lock",
        ".run-id",
    ],
)
def test_commands_that_look_at_a_run_end_whatever_one_of_its_files_is(
    tmp_path: Path, name: str, kind: str
) -> None:
    run = tracked_run(tmp_path / "run", steps=3)
    other = tracked_run(tmp_path / "other", steps=3, games=False)
    spoil(run / name, kind)
    watched = run_command("watch", run, "--once")
    report = run_command("report", run)
    run_command("report", run, "--html", tmp_path / "page.html")
    viewed = run_command("view", run)
    compared = run_command("compare", f"a={run}", f"b={other}")
    reason = "longer than" if kind == "huge" else "not a plain file"
    if name == "metrics.jsonl":
        assert reason in " ".join(watched.split())
        assert reason in " ".join(report.split())
        assert "metrics.jsonl" in compared
    if name == "incidents.jsonl":
        assert reason in " ".join(watched.split())
    if name.startswith("evaluations"):
        assert f"one.json: cannot be read ({reason}" in report
    if name.startswith("episodes"):
        assert reason in viewed
    else:
        assert "step_000003.jsonl of run" in viewed


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_ends_with_what_is_wrong_whatever_a_file_of_its_run_is(
    tmp_path: Path, kind: str
) -> None:
    run = tracked_run(tmp_path / "run", steps=3, checkpoints=(3,))
    readers = {
        "settings.json": lambda: read_saved_settings(run),
        "resume.json": lambda: read_resume(run),
        "validation.json": lambda: read_validations(run),
        ".run-id": lambda: run_identity(run),
        ".run-secret": lambda: run_secret(run),
        "metrics.jsonl": lambda: cut_records(run, 2),
        "checkpoint-3/manifest.json": lambda: find_checkpoint(run),
        "checkpoint-3/player_0/adapter_config.json": lambda: find_checkpoint(run),
        "checkpoint-3/player_1/adapter_model.safetensors": lambda: find_checkpoint(run),
    }
    for name, read in readers.items():
        kept = (run / name).read_bytes() if (run / name).exists() else None
        spoil(run / name, kind)
        with pytest.raises((HanabiGrpoError, OSError)):
            read()
        if name.startswith("checkpoint"):
            plan = plan_resume(Settings(resume="latest", output_dir=run))
            assert plan is not None
            assert plan.step == 0, "the damaged checkpoint is not taken"
        if (run / name).is_dir():
            (run / name).rmdir()
        else:
            (run / name).unlink()
        if kept is not None:
            (run / name).write_bytes(kept)
    assert find_checkpoint(run).folder.name == "checkpoint-3"


@pytest.mark.parametrize("kind", ["fifo", "endless", "socket", "folder"])
def test_nothing_is_appended_to_what_is_not_a_plain_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows.jsonl"
    spoil(path, kind)
    with pytest.raises(OSError, match=r"not a plain file|Is a directory"):
        append_jsonl(path, {"step": 1})
    with pytest.raises(RunFolderError, match=r"rows\.jsonl: cannot be written \("):
        set_up_logging(file=path)
    with pytest.raises(SettingsError, match=r"rows\.jsonl: cannot be used \("):
        Ledger(path, {"lineup": "iggi"})
    spoil(tmp_path / ".lock", kind)
    assert holder_of(tmp_path) == ""
    with pytest.raises(RunFolderError, match=r"\.lock: cannot be locked \("):
        lock_run_folder(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_other_readers_of_files_refuse_what_is_not_plain(tmp_path: Path, kind: str) -> None:
    spoil(tmp_path / "result.json", kind)
    with pytest.raises(SettingsError, match=r"result\.json: cannot be read \("):
        read_result(tmp_path / "result.json")
    assert len(find_evaluations(tmp_path).problems) == 1
    spoil(tmp_path / "wandb.json", kind)
    assert read_record(tmp_path).artifacts == []
    adapter = tmp_path / "checkpoint-1/player_0"
    spoil(adapter / "adapter_config.json", kind)
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    with pytest.raises(SettingsError, match="cannot be read as a PEFT adapter"):
        read_adapters(tmp_path / "checkpoint-1")


ABSURD_STEPS = ("9" * 4200, "-1", str(2**63), str(-(2**70)), str(2**31), "1.5", "true", '"7"')


def test_rows_with_absurd_steps_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=3)
    with (run / "metrics.jsonl").open("a") as file:
        for step in ABSURD_STEPS:
            file.write(f'{{"step": {step}, "games": 16.0, "score/mean": 1.0}}\n')
        file.write('{"train_runtime": 3}\n[1]\n{"step": 4, "ga')
    with caplog.at_level(logging.WARNING):
        rows = read_history(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    note = "metrics.jsonl: 8 lines are left out"
    assert caplog.messages == [
        f"{run}: {note}: not JSON, or a step that is not a whole number from 0 to 2147483647."
    ]
    for command in (("watch", run, "--once"), ("report", run)):
        output = " ".join(run_command(*command).split())
        assert note in output
        assert "step 3" in output


ABSURD_VALUES = (
    "9" * 4200,
    "-" + "9" * 4200,
    "1e308",
    "-1e308",
    "5e-324",
    "NaN",
    "Infinity",
    "1e400",
    str(2**63),
    "null",
    "true",
    '"x"',
    "[1]",
    "{}",
)


ABSURD_FIGURES = (
    "score/mean",
    "step_time",
    "staleness",
    "time/push",
    "time/train",
    "player_0/reward",
    "player_0/entropy_estimate",
    "kl",
    "illegal_per_game",
)


def test_absurd_figures_break_no_command(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=12)
    other = tracked_run(tmp_path / "other", steps=24, games=False)
    with (run / "metrics.jsonl").open("a") as file:
        # Every figure has every value once, and later sane ones again.
        for number in range(len(ABSURD_VALUES)):
            row = f'{{"step": {13 + number}, "games": 16.0'
            for place, name in enumerate(ABSURD_FIGURES):
                row += f', "{name}": {ABSURD_VALUES[(number + place) % len(ABSURD_VALUES)]}'
            file.write(row + "}\n")
    with (run / "incidents.jsonl").open("a") as file:
        for value in ABSURD_VALUES:
            file.write(
                f'{{"kind": "alarm", "time": {value}, "step": {value}, "message": {value}}}\n'
            )
            file.write(f'{{"kind": {value}, "time": {value}, "step": {value}}}\n')
    run_command("watch", run, "--once")
    run_command("report", run, "--html", tmp_path / "page.html", "--png", tmp_path / "charts")
    run_command("compare", f"a={run}", f"b={other}")
    add_row(run, 40)
    assert "step 40" in run_command("report", run, "--alarms")


def test_absurd_outcomes_of_an_evaluation_break_no_command(tmp_path: Path) -> None:
    whole = {"win": 0.5, "draw": 0.0, "loss": 0.5, "bad-reply win": 0.0, "return": 0.0}
    absurd: list[tuple[dict[str, float], list[float]]] = [
        ({"win": 0.5}, [0.0, 4.0]),
        ({**whole, "win": 5.0}, [0.0, 4.0]),
        ({**whole, "loss": math.nan}, [0.0, 4.0]),
        (whole, [4.0, 4.0]),
        (whole, [0.0, math.inf]),
    ]
    for number, (outcomes, score_range) in enumerate(absurd):
        run = tracked_run(tmp_path / f"run-{number}", steps=1, games=False)
        figures = {f"{name} as first": value for name, value in outcomes.items()}
        result = evaluate_scripted("blind", LAPTOP, 4)
        document = {**result_to_json(result), "figures": figures, "score_range": score_range}
        (run / "blind.json").write_text(json.dumps(document))
        assert "blind" in run_command("report", run)


def test_a_page_has_a_bounded_number_of_charts_and_says_how_many_figures_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page, "_MOST_CHARTS", 3)
    run = tracked_run(tmp_path / "run", steps=0, games=False)
    names = [f"figure_{number}" for number in range(2000)]
    names += [f"player_{number}/x" for number in range(500)]
    for step in range(1, 4):
        add_row(run, step, **dict.fromkeys(names, 1.0 * step))
    output = run_command("report", run, "--html", tmp_path / "page.html")
    # 2000, and the two that every row has, without three.
    assert "1999 metrics of metrics.jsonl are left out: no room on this page." in output
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure>") == 2 + 2 + 1, "of the team (loss is empty), of players, phases"
    assert "figure 0" in page
    assert "step 3" in run_command("watch", run, "--once")


def test_scripts_do_not_play_any_number_of_tasks_for_a_report(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=3, games=False)
    result = result_to_json(evaluate_scripted("iggi", LAPTOP, 4))
    numbers = list(range(6000))
    result |= {"seeds": numbers, "starts": numbers, "scores": [1.0] * len(numbers)}
    (run / "evaluation.json").write_text(json.dumps(result))
    output = run_command("report", run)
    assert "6000 tasks are too many to play here (at most 5000)" in output
    run_command("watch", run, "--once")


@pytest.mark.parametrize("value", ABSURD_VALUES)
def test_absurd_settings_and_validations_break_no_command(tmp_path: Path, value: str) -> None:
    run = tracked_run(tmp_path / "run", steps=3)
    validation = f'[{{"step": {value}, "score": {value}, "se": {value}}}]'
    (run / "validation.json").write_text(validation)
    document = json.loads((run / "settings.json").read_text())
    for name in ("MAX_STEPS", "HANABI_PLAYERS", "HANABI_PRESET", "MODEL", "HANABI_ENV"):
        document["settings"][name] = "VALUE"
    text = json.dumps(document).replace('"VALUE"', value)
    (run / "settings.json").write_text(text)
    assert "step 3" in run_command("watch", run, "--once")
    assert "validation.json: not written by a run (" in run_command("report", run)
    run_command("view", run)
