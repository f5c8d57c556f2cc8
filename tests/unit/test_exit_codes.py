"""The table of docs/exit-codes.md, held against the commands in processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor_machines import ROOT, free_port, make_model
from hanabi_grpo.commands.interruption import INTERRUPTED
from hanabi_grpo.server.main import EXIT_CODE

CLI = (sys.executable, "-m", "hanabi_grpo.cli")
TABLE = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
Start = Callable[..., "subprocess.Popen[str]"]


def environ(tmp_path: Path, **settings: str) -> dict[str, str]:
    port = str(free_port())
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    own = {"OUTPUT_DIR": str(tmp_path / "run"), "PORT": port, "VLLM_SERVER_PORT": port, "REPORT_TO": "none"}
    return {**kept, **own, **settings}


def code_of(tmp_path: Path, *words: str, **settings: str) -> tuple[int, str]:
    done = subprocess.run([*CLI, *words], env=environ(tmp_path, **settings), cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("codes") / "model"))


def test_every_code_has_a_row() -> None:
    rows = [int(line.split("|")[1]) for line in TABLE.splitlines() if line.startswith("| ") and line[2].isdecimal()]
    assert rows == [0, 1, 1, 2, EXIT_CODE, INTERRUPTED, 128 + signal.SIGTERM]


def test_a_dry_run_a_check_and_a_wrong_use_end_with_0_1_or_2_and_without_a_traceback(
    tmp_path: Path, model: str
) -> None:
    for words, settings, code, said in (
        (("train", "--dry-run", "--json"), {"MODEL": model}, 0, ""),
        (("train", "--dry-run"), {"MODEL": model, "DATASET": "no/such.jsonl"}, 1, ""),
        (("doctor", "--role", "trainer", "--json"), {"DATASET": "no/such.jsonl"}, 1, ""),
        (("train", "--dry-run"), {"HANABI_PLAYERS": "7"}, 2, "error: HANABI_PLAYERS=7: Hanabi needs 2 to 5 players."),
        (("train", "--json"), {}, 2, "--json is for"),
        (("no-such-command",), {}, 2, "no-such-command"),
        (("report", "no-run"), {}, 2, "no-run: no such folder"),
    ):
        ended, errors = code_of(tmp_path, *words, **settings)
        assert ended == code and said in errors and "Traceback" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_trainer_that_waits_ends_with_the_code_of_the_signal(
    tmp_path: Path, model: str, number: signal.Signals, code: int, start_process: Start
) -> None:
    process = start_process(
        [*CLI, "train"],
        env={**environ(tmp_path, MODEL=model), "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "waiting for" in line:
            break
    process.send_signal(number)
    # A process that a signal ends has the shell's code for it.
    ended = process.wait(timeout=60)
    assert (128 - ended if ended < 0 else ended) == code
