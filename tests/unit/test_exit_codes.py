"""The table of docs/exit-codes.md, held against the commands in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor_machines import ROOT, free_port, make_model
from hanabi_grpo.commands.interruption import INTERRUPTED
from hanabi_grpo.server.supervisor import EXIT_CODE

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


def test_a_dry_run_ends_with_0_1_or_2(tmp_path: Path, model: str) -> None:
    assert code_of(tmp_path, "train", "--dry-run", "--json", MODEL=model)[0] == 0
    assert code_of(tmp_path, "train", "--dry-run", MODEL=model, DATASET="no/such.jsonl") == (1, "")
    code, errors = code_of(tmp_path, "train", "--dry-run", MODEL=model, HANABI_PLAYERS="7")
    assert code == 2 and errors == "error: HANABI_PLAYERS=7: Hanabi needs 2 to 5 players.\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [("train", "--json"), ("serve", "--dry-run", "--print-config"), ("no-such-command",)])
def test_a_wrong_use_ends_with_2_and_without_a_traceback(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, errors = code_of(tmp_path, *words)
    assert code == 2 and errors and "Traceback" not in errors


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


def test_a_missing_file_is_2_and_a_failed_check_1(tmp_path: Path) -> None:
    code, errors = code_of(tmp_path, "report", "no-run")
    assert code == 2 and "no-run: no such folder" in errors
    code, _ = code_of(tmp_path, "doctor", "--role", "trainer", "--json", DATASET="no/such.jsonl")
    assert code == 1


def test_print_config_ends_with_0_and_is_what_settings_says(tmp_path: Path) -> None:
    shell = environ(tmp_path, SEED="5")
    done = [
        subprocess.run([*CLI, *words], env=shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in (("serve", "--print-config", "--json"), ("settings", "--json"))
    ]
    assert done[0] == done[1] and json.loads(done[0])["origins"]["SEED"] == "shell"
