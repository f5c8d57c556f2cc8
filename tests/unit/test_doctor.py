"""The command, its two forms of output, its exit codes, and settings that are wrong."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from doctor_machines import ROOT, find, free_port, make_model, named, only
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor import Check, report_lines, run_checks
from hanabi_grpo.commands.doctor.check import ok, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.environment import name_checks
from hanabi_grpo.commands.doctor.run import Probe
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings import load_settings

RUNNER = CliRunner()
NOWHERE = Path("/nonexistent/.env")


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set variables under which nothing fails; the working folder is the checkout."""
    for name in (
        "OMP_NUM_THREADS",
        "REPORT_TO",
        "HF_HUB_OFFLINE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    model, port = make_model(tmp_path / "model"), free_port()
    for name, value in {
        "MODEL": model,
        "PORT": port,
        "VLLM_SERVER_PORT": port,
        "OUTPUT_DIR": tmp_path / "run",
    }.items():
        monkeypatch.setenv(name, str(value))
    return model


def run(*options: str) -> tuple[int, dict[str, Any]]:
    result = RUNNER.invoke(app, ["doctor", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def test_nothing_fails_where_all_is_well_and_the_exit_code_is_0(sound: Path) -> None:
    code, report = run()
    assert (code, report["fail"]) == (0, 0), [check for check in report["checks"] if check["status"] == "fail"]
    assert [check["name"] for check in report["checks"]][:3] == ["settings", "names", "packages"]
    assert list(report) == ["checks", "ok", "warn", "fail", "skip"]
    assert all(list(check) == ["name", "status", "finding", "remedy", "seconds", "see"] for check in report["checks"])
    statuses = [check["status"] for check in report["checks"]]
    assert all(report[status] == statuses.count(status) for status in ("ok", "warn", "fail", "skip"))


def test_a_failure_makes_the_exit_code_1_and_the_others_still_run(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET", "none.jsonl")
    code, report = run("--role", "trainer")
    status = {check["name"]: check["status"] for check in report["checks"]}
    assert code == 1 and status["dataset"] == "fail" and status["model"] == "ok" and status["batch"] == "skip"
    see = {check["name"]: check["see"] for check in report["checks"]}
    assert (see["dataset"], see["model"], see["batch"]) == ("docs/troubleshooting.md#dataset", "", "")


def test_an_unknown_role_is_a_usage_error() -> None:
    result = RUNNER.invoke(app, ["doctor", "--role", "judge"])
    assert (result.exit_code, result.stderr) == (2, "error: --role 'judge': choose one of server, trainer, both.\n")


def test_a_role_chooses_the_checks_that_matter(sound: Path) -> None:
    names = {role: {check["name"] for check in run("--role", role)[1]["checks"]} for role in ("server", "trainer")}
    assert names["server"] - names["trainer"] == {"port", "shared memory"}
    assert names["trainer"] - names["server"] == {"batch", "dataset", "disk", "run folder", "server", "wandb"}


def test_wrong_settings_are_lines_among_the_others(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_PLAYRS", "3")
    monkeypatch.setenv("HANABI_PLAYERS", "9")
    monkeypatch.setenv("HANABI_HOST", "0.0.0.0")
    code, report = run("--role", "trainer")
    lines = [(check["status"], check["finding"][:40]) for check in report["checks"] if check["name"] == "settings"]
    assert code == 1
    assert lines == [
        ("fail", "HANABI_PLAYRS (from shell): no such sett"),
        ("fail", "HANABI_PLAYERS=9: Hanabi needs 2 to 5 pl"),
        ("fail", "HANABI_HOST='0.0.0.0': an address that o"),
    ]
    assert report["checks"][0]["remedy"] == 'export HANABI_PLAYERS="$HANABI_PLAYRS"; unset HANABI_PLAYRS'
    assert {check["name"]: check["status"] for check in report["checks"]}["batch"] == "ok"


@pytest.mark.parametrize(
    ("slip", "meant"), [("LEARNINGRATE", "LEARNING_RATE"), ("VLLM_SERVERPORT", "VLLM_SERVER_PORT")]
)
def test_a_name_that_is_nearly_a_setting_is_a_failure(slip: str, meant: str) -> None:
    check = only(find(name_checks, shell={slip: "secret"}))
    assert (check.status, check.remedy.split("   #")[0]) == ("fail", f'export {meant}="${slip}"; unset {slip}')
    assert f"{slip} is set, but the setting is {meant}" in check.finding and "secret" not in check.finding


def test_a_check_that_raises_is_a_failure_and_the_next_one_runs() -> None:
    def torn(context: Context) -> Iterator[Check]:
        yield ok("first", "fine")
        raise ZeroDivisionError("by 0")

    def refused(context: Context) -> Iterator[Check]:
        raise ServerError("gone")
        yield

    def sound(context: Context) -> Iterator[Check]:
        yield ok("last", "fine")

    probes = [Probe(name=name, find=find) for name, find in (("torn", torn), ("refused", refused), ("sound", sound))]
    seen: list[Check] = []
    checks = run_checks(load_settings({}, NOWHERE), shell={}, probes=probes, report=seen.append)
    assert [(check.name, check.status) for check in checks[1:]] == [
        *(("first", "ok"), ("torn", "fail"), ("refused", "fail"), ("last", "ok")),
    ]
    assert named(checks, "torn").finding == "the check itself failed (ZeroDivisionError: by 0)"
    assert named(checks, "torn").remedy.startswith(".venv/bin/hanabi-grpo doctor --json")
    assert seen == checks


@pytest.mark.parametrize("width", [80, 120])
def test_lines_read_without_colour_and_remedies_stay_whole(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    check = warn("run folder", "long " * 40, "export PORT=1 " * 10 + "\nsecond")
    for line, whole in report_lines(check):
        console.print(line, soft_wrap=whole)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("! warn run folder     long long")
    assert all(len(line) <= width for line in lines if "→" not in line)
    assert lines[-3].strip() == "→ " + ("export PORT=1 " * 10).strip()
    assert lines[-2].strip() == "→ second"
    assert lines[-1].strip() == "see docs/troubleshooting.md#run-folder"


def test_a_key_appears_nowhere(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HANABI_API_KEY", "WANDB_API_KEY", "WANDB_APIKEY"):
        monkeypatch.setenv(name, "topsecret")
    monkeypatch.setenv("HTTP_PROXY", "http://me:topsecret@proxy:1")
    monkeypatch.setenv("REPORT_TO", "wandb")
    assert "topsecret" not in RUNNER.invoke(app, ["doctor"]).output
