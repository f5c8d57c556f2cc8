"""The command, its two forms of output, its exit codes, and settings that are wrong."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from doctor_machines import NOWHERE, ROOT, free_port, make_model
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor.check import Check, ok, print_checks, warn
from hanabi_grpo.commands.doctor.command import Probe, make_checks
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings import load_settings

RUNNER = CliRunner()


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set variables under which nothing fails; the working folder is the checkout."""
    for name in ("OMP_NUM_THREADS", "REPORT_TO", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    model, port = make_model(tmp_path / "model"), free_port()
    given = {"MODEL": model, "PORT": port, "VLLM_SERVER_PORT": port, "OUTPUT_DIR": tmp_path / "run"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))


def run(*options: str) -> tuple[int, dict[str, Any]]:
    result = RUNNER.invoke(app, ["doctor", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.usefixtures("sound")
def test_nothing_fails_where_all_is_well_and_a_role_chooses_the_checks_that_matter() -> None:
    code, report = run()
    assert (code, report["fail"]) == (0, 0), [check for check in report["checks"] if check["status"] == "fail"]
    assert list(report) == ["checks", "ok", "warn", "fail", "skip"]
    assert all(list(check) == ["name", "status", "finding", "remedy", "seconds", "see"] for check in report["checks"])
    statuses = [check["status"] for check in report["checks"]]
    assert all(report[status] == statuses.count(status) for status in ("ok", "warn", "fail", "skip"))
    names = {role: {check["name"] for check in run("--role", role)[1]["checks"]} for role in ("server", "trainer")}
    assert names["server"] - names["trainer"] == {"port", "shared memory"}
    assert names["trainer"] - names["server"] == {"batch", "dataset", "disk", "run folder", "server", "wandb"}
    result = RUNNER.invoke(app, ["doctor", "--role", "judge"])
    assert (result.exit_code, result.stderr) == (2, "error: --role 'judge': choose one of server, trainer, both.\n")


@pytest.mark.usefixtures("sound")
def test_wrong_settings_are_named_with_what_to_type_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HANABI_PLAYRS": "3", "HANABI_PLAYERS": "9", "LEARNINGRATE": "secret"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    code, report = run("--role", "trainer")
    assert (code, report["fail"], report["ok"]) == (1, 3, 0) and "secret" not in json.dumps(report)
    assert [(check["finding"][:40], check["remedy"].splitlines()[0]) for check in report["checks"]] == [
        ("HANABI_PLAYRS (from shell): no such sett", 'export HANABI_PLAYERS="$HANABI_PLAYRS"; unset HANABI_PLAYRS'),
        ("HANABI_PLAYERS=9: Hanabi needs 2 to 5 pl", "unset HANABI_PLAYERS"),
        ("LEARNINGRATE (from shell): no such setti", 'export LEARNING_RATE="$LEARNINGRATE"; unset LEARNINGRATE'),
    ]


@pytest.mark.usefixtures("sound")
def test_a_failure_makes_the_exit_code_1_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET", "none.jsonl")
    code, report = run("--role", "trainer")
    found = {check["name"]: (check["status"], check["see"]) for check in report["checks"]}
    assert code == 1 and found["dataset"] == ("fail", "docs/troubleshooting.md#dataset")
    assert (found["model"], found["batch"]) == (("ok", ""), ("skip", ""))


def test_a_check_that_raises_is_a_failure_and_the_next_one_runs() -> None:
    def torn(context: Context) -> Iterator[Check]:
        yield ok("first", "fine")
        raise ZeroDivisionError("by 0")

    def refused(context: Context) -> Iterator[Check]:
        raise ServerError("gone")
        yield

    def sound(context: Context) -> Iterator[Check]:
        yield ok("last", "fine")

    probes = [Probe("torn", torn), Probe("refused", refused), Probe("sound", sound)]
    checks = make_checks(load_settings({}, NOWHERE), shell={}, probes=probes)
    assert [(check.name, check.status) for check in checks] == [
        *(("first", "ok"), ("torn", "fail"), ("refused", "fail"), ("last", "ok")),
    ]
    assert checks[1].finding == "the check itself failed (ZeroDivisionError: by 0)"
    assert checks[1].remedy.startswith(".venv/bin/hanabi-grpo doctor --json")


@pytest.mark.parametrize("width", [80, 120])
def test_lines_read_without_colour_and_remedies_stay_whole(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    check = warn("run folder", "long " * 40, "export PORT=1 " * 10 + "\nsecond")
    print_checks(console, [check])
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("! warn run folder     long long")
    assert all(len(line) <= width for line in lines if "→" not in line)
    assert [line.strip() for line in lines[-3:]] == [
        "→ " + ("export PORT=1 " * 10).strip(),
        "→ second",
        "see docs/troubleshooting.md#run-folder",
    ]


@pytest.mark.usefixtures("sound")
def test_a_key_appears_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HANABI_API_KEY", "WANDB_API_KEY", "WANDB_APIKEY"):
        monkeypatch.setenv(name, "topsecret")
    monkeypatch.setenv("HTTP_PROXY", "http://me:topsecret@proxy:1")
    monkeypatch.setenv("REPORT_TO", "wandb")
    assert "topsecret" not in RUNNER.invoke(app, ["doctor"]).output
