"""`hanabi-grpo train` and `serve`.

--print-config, --dry-run, waiting for the server, and becoming the trainer.
"""

import errno
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from doctor_machines import (
    NOWHERE,
    ROOT,
    answering,
    empty_model,
    find,
    make_model,
    only,
)
from hanabi_grpo.cli import app
from hanabi_grpo.client.waiting import wait_for_first_server
from hanabi_grpo.commands import train as train_module
from hanabi_grpo.commands.doctor.machine import run_folder_checks
from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows import problems
from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.resume import read_resume
from hanabi_grpo.runs.validation import Validated, write_validations
from hanabi_grpo.settings import LoadedSettings, load_settings, read_settings, settings_json
from hanabi_grpo.terminal import sayer
from hanabi_grpo.tracking.record import WandbRecord, write_record
from hanabi_grpo.training import main as trainer
from ports import closed_port, free_port
from torn_checkpoints import write as write_checkpoint_of

RUNNER = CliRunner()
TERMINALS = ("serve", "train")
TRAIN_SCRIPT = "bash tools/train/train_grpo_msswift.sh"


def run(*args: str) -> tuple[int, str]:
    """Run a command; return its exit code and standard output."""
    result = RUNNER.invoke(app, list(args))
    return result.exit_code, result.stdout


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set variables under which nothing fails; a trainer that starts fails the test."""
    for name in list(os.environ):
        if "proxy" in name.lower():
            monkeypatch.delenv(name)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = make_model(tmp_path / "model")
    port = str(free_port())
    monkeypatch.setenv("MODEL", str(model))
    monkeypatch.setenv("PORT", port)
    monkeypatch.setenv("VLLM_SERVER_PORT", port)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("REPORT_TO", "none")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(trainer, "main", lambda argv: pytest.fail(f"started {argv}"))
    return model


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("command", TERMINALS)
def test_print_config_shows_every_setting_with_its_origin(command: str) -> None:
    code, text = run(command, "--print-config")
    assert code == 0
    rows = {}
    for line in text.splitlines():
        cells = line.strip("│").split()
        if len(cells) >= 3:
            rows[cells[0]] = cells[1:]
    assert rows["REPORT_TO"] == ["│", "none", "│", "shell"]
    assert rows["BETA"][-1] == "default"


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("command", TERMINALS)
def test_print_config_as_json_masks_the_key(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_API_KEY", "topsecret")
    code, text = run(command, "--print-config", "--json")
    assert code == 0
    assert json.loads(text) == settings_json(load_settings())
    assert "topsecret" not in text


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("name", ["HANABI_START_FROM", "HANABI_PARTNERS", "HANABI_TEACHER"])
def test_a_checkpoint_that_is_missing_is_refused_before_the_server_is_waited_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "outputs/none")
    monkeypatch.setenv("HANABI_SERVER_TIMEOUT", "1")
    reason = f"{name}=outputs/none: outputs/none: no such folder; give a run, or its checkpoint-N."
    result = RUNNER.invoke(app, ["train"])
    assert result.exit_code == 2
    assert result.stderr.replace("\n", " ").strip() == f"error: {reason}"
    assert "waiting for the rollout server" not in result.stdout
    assert not (tmp_path / "run").exists()
    dry = RUNNER.invoke(app, ["train", "--dry-run", "--json"])
    assert dry.exit_code == 1
    failed = [check for check in json.loads(dry.stdout)["doctor"]["checks"] if check["remedy"]]
    assert [check["finding"] for check in failed if check["status"] == "fail"] == [reason]


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("command", TERMINALS)
@pytest.mark.parametrize("options", [("--print-config", "--dry-run"), ("--json",)])
def test_print_config_and_dry_run_are_given_one_at_a_time(
    command: str, options: tuple[str, ...]
) -> None:
    result = RUNNER.invoke(app, [command, *options])
    assert result.exit_code == 2
    assert "give either --print-config or --dry-run" in result.stderr


def dry_run(command: str, folder: Path) -> tuple[str, str]:
    """Make a dry run that must leave no trace; return its output and the part on the start."""
    before = sorted(folder.rglob("*"))
    code, text = run(command, "--dry-run", "--mine", "1")
    assert code == 0, text
    assert sorted(folder.rglob("*")) == before
    assert " 0 fail" in text
    _, _, start = text.partition("dry run: nothing was started. ")
    return text, start


@pytest.mark.usefixtures("sound")
def test_a_dry_run_of_train_checks_and_shows_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    text, start = dry_run("train", tmp_path)
    assert "\nGPUs 3: CUDA_VISIBLE_DEVICES=2,3 (shell) lists more than " in text
    assert "    CUDA_VISIBLE_DEVICES=3 " in start
    settings_path = f"{tmp_path}/run/settings.json"
    would, _, command = start.partition(", then start the trainer:\n    ")
    assert would.startswith("Without --dry-run, this command would wait up to 600 s for the server")
    assert f"-m hanabi_grpo.training.main --settings {settings_path} --mine 1\n" in command


@pytest.mark.usefixtures("sound")
def test_a_dry_run_of_serve_checks_and_shows_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    text, start = dry_run("serve", tmp_path)
    assert "\nGPUs 2: CUDA_VISIBLE_DEVICES=2,3 (shell) lists more than " in text
    assert "    CUDA_VISIBLE_DEVICES=2 " in start
    would, _, command = start.partition(":\n    ")
    assert would.startswith(
        "Without --dry-run, this command would start a server that listens on http://127.0.0.1:"
    )
    assert "-m hanabi_grpo.cli serve --mine 1\n" in command


@pytest.mark.usefixtures("sound")
def test_a_dry_run_with_a_failed_check_says_that_a_start_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANABI_PARTNERS", "outputs/nobody")
    code, text = run("train", "--dry-run")
    assert code == 1, text
    assert " 1 fail" in text
    _, _, start = text.partition("dry run: nothing was started. ")
    assert start.startswith(
        "Once the failed checks above pass, and without --dry-run, this command"
    )


@pytest.mark.usefixtures("sound")
def test_a_dry_run_as_json_has_settings_checks_and_start(tmp_path: Path) -> None:
    code, text = run("train", "--dry-run", "--json")
    assert code == 0, text
    document = json.loads(text)
    assert list(document) == ["settings", "doctor", "would_start"]
    assert document["doctor"]["fail"] == 0
    start = document["would_start"]
    assert sorted(start) == ["command", "environ", "url"]
    assert start["command"][-2:] == ["--settings", f"{tmp_path}/run/settings.json"]
    assert start["url"].startswith("http://127.0.0.1:")


def test_a_run_folder_in_use_is_found_before_the_trainer_starts(tmp_path: Path) -> None:
    new = tmp_path / "new"
    check = only(find(run_folder_checks, OUTPUT_DIR=new))
    assert check.status == "ok"
    assert str(new) in check.finding

    used = tmp_path / "used"
    used.mkdir()
    (used / "metrics.jsonl").touch()
    check = only(find(run_folder_checks, OUTPUT_DIR=used))
    assert check.status == "fail"
    assert "already holds another run (metrics.jsonl)" in check.finding

    check = only(find(run_folder_checks, OUTPUT_DIR=used / "metrics.jsonl"))
    assert check.status == "fail"
    assert "is a file" in check.finding
    assert not new.exists()


def test_a_resume_from_nothing_is_found_before_the_trainer_starts(tmp_path: Path) -> None:
    check = only(find(run_folder_checks, RESUME=tmp_path / "none"))
    assert check.status == "fail"
    assert "no such folder" in check.finding

    new = tmp_path / "new"
    check = only(find(run_folder_checks, RESUME="latest", OUTPUT_DIR=new))
    assert check.status == "ok"
    assert "starts at step 0" in check.finding
    assert not new.exists()


@pytest.fixture
def server_port() -> Iterator[int]:
    """The port of a server that is starting for a moment."""
    with answering(200, {"instance_id": "i"}, starting=2) as port:
        yield port


def loaded(**environ: str) -> LoadedSettings:
    return load_settings(environ, NOWHERE)


def recording() -> Console:
    """Return a console whose output can be read."""
    return Console(record=True, width=200, file=io.StringIO())


def test_waiting_ends_when_the_server_is_healthy() -> None:
    console = recording()
    with answering(200, {"instance_id": "i"}, key="k", starting=2) as port:
        here = loaded(VLLM_SERVER_PORT=str(port), HANABI_API_KEY="k")
        wait_for_first_server(here, sayer(console), poll=0.01)
    server = f"the rollout server at http://127.0.0.1:{port}"
    assert console.export_text().splitlines() == [
        f"{server} is starting, 146 s",
        f"{server} is ready.",
    ]


def test_a_refused_key_ends_the_wait() -> None:
    refused = r"refuses this key .401.: set the same HANABI_API_KEY in both terminals"
    with answering(200, {}, key="other") as port, pytest.raises(ServerError, match=refused):
        here = loaded(VLLM_SERVER_PORT=str(port), HANABI_API_KEY="k")
        wait_for_first_server(here, sayer(recording()), poll=0.01)


def test_a_server_that_never_comes_ends_the_wait_with_the_command_that_starts_it() -> None:
    console = recording()
    with closed_port() as port:
        here = loaded(VLLM_SERVER_PORT=str(port), HANABI_SERVER_TIMEOUT="2.5")
        with pytest.raises(ServerError, match=r"after 2\.5 s \(ConnectError") as caught:
            wait_for_first_server(here, sayer(console), remind=0.05, poll=0.01)
    assert f"PORT={port} bash tools/rollout/rollout_hanabi_gym.sh" in str(caught.value)
    said = console.export_text()
    assert said.count("Type in another terminal") == 1
    assert said.count("still no rollout server") > 1


def train_environ(tmp_path: Path, **changes: str) -> dict[str, str]:
    """Return variables with a model and a run folder, and no setting of this shell."""
    variables = {}
    for name, value in os.environ.items():
        if not name.startswith("HANABI_"):
            variables[name] = value
    variables["MODEL"] = str(empty_model(tmp_path / "model"))
    variables["OUTPUT_DIR"] = str(tmp_path / "run")
    return {**variables, **changes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What `hanabi-grpo train` did."""

    result: Result
    commands: list[list[str]]
    """Arguments of the trainers that it became; none where it stopped before."""


TrainCommand = Callable[..., Started]


@pytest.fixture
def train_command(
    tmp_path: Path, server_port: int, monkeypatch: pytest.MonkeyPatch
) -> TrainCommand:
    """Run `hanabi-grpo train` up to where it becomes the trainer."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def command(*options: str, **environ: str) -> Started:
        commands: list[list[str]] = []

        def become(argv: list[str]) -> int:
            commands.append(argv)
            return 0

        changes = {"VLLM_SERVER_PORT": str(server_port), **environ}
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "main", become)
            patch.setattr(trainer, "import_parts", lambda: iter(()))
            patch.setattr(os, "execvp", lambda program, argv: become(argv))
            # The command sets it for the trainer; the patch takes it back.
            patch.setenv("HANABI_API_KEY", "")
            for name, value in train_environ(tmp_path, **changes).items():
                patch.setenv(name, value)
            result = RUNNER.invoke(app, ["train", *options])
        return Started(result=result, commands=commands)

    return command


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NPROC_PER_NODE": "3"}, "NPROC_PER_NODE=3"),
        ({"DATASET": "none.jsonl"}, "none.jsonl"),
        ({"MODEL": "/no-model"}, "hanabi-grpo tiny-model"),
        ({"HANABI_SERVER_TIMEOUT": "0.1", "VLLM_SERVER_PORT": "1"}, "no rollout server at"),
    ],
)
def test_train_stops_at_the_first_impossible_thing_and_leaves_no_folder(
    tmp_path: Path, train_command: TrainCommand, environ: dict[str, str], message: str
) -> None:
    started = train_command(**environ)
    assert started.result.exit_code == 2
    assert message in started.result.stderr
    assert started.commands == []
    assert not (tmp_path / "run").exists()


def test_a_machine_that_joins_makes_no_run_folder_and_waits_for_no_server(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    started = train_command(
        "--weight_decay",
        "0",
        NNODES="2",
        NODE_RANK="1",
        MASTER_ADDR="10.0.0.1",
        DEEPSPEED="zero2",
    )
    assert "joining node 0\nstarting " in started.result.output
    assert "waiting for" not in started.result.output
    [argv] = started.commands
    assert argv[1:7] == ["-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"]
    assert argv[-4:] == ["--settings", f"{tmp_path}/run/settings.json", "--weight_decay", "0"]
    assert not (tmp_path / "run").exists()


def test_train_leaves_its_settings_and_becomes_the_trainer(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    started = train_command("--weight_decay", "0", HANABI_API_KEY="topsecret")
    assert started.result.exit_code == 0, started.result.output
    path = tmp_path / "run" / "settings.json"
    assert started.commands == [["--settings", str(path), "--weight_decay", "0"]]
    assert "topsecret" not in path.read_text()
    assert "topsecret" not in started.result.output
    settings = read_settings(path)
    assert settings.output_dir == tmp_path / "run"
    assert settings.max_steps == 500
    assert "500 steps of 8 tasks × 16 games, 256 trajectories" in started.result.output


def test_the_trainer_may_be_started_before_the_server_has_made_the_tiny_model(
    tmp_path: Path, train_command: TrainCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "outputs" / "tiny-simple"
    monkeypatch.setattr(time, "sleep", lambda seconds: empty_model(model))
    started = train_command(MODEL="", HANABI_PRESET="simple")
    assert started.result.exit_code == 0, started.result.output
    message = "MODEL=outputs/tiny-simple: not built yet; the rollout script builds it"
    assert message in started.result.output
    assert len(started.commands) == 1


def test_a_model_that_the_server_has_not_made_either_ends_the_trainer(
    tmp_path: Path, train_command: TrainCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started = train_command(MODEL="", HANABI_PRESET="simple")
    assert started.result.exit_code == 2
    assert "MODEL=outputs/tiny-simple: no such folder" in started.result.stderr
    assert started.commands == []


def test_a_killed_run_continues_from_its_newest_valid_checkpoint(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    output = train_command(RESUME="latest").result.output
    assert f"nothing to resume in {run_folder} yet: starts at step 0" in output
    assert read_resume(run_folder) is None
    first_settings = (run_folder / "settings.json").read_text()
    write_checkpoint_of(run_folder, 2)
    write_checkpoint_of(run_folder, 3)
    (run_folder / "checkpoint-3" / "manifest.json").unlink()
    (run_folder / ".checkpoint-4.partial").mkdir()
    (run_folder / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n')
    (run_folder / "episodes").mkdir()
    (run_folder / "episodes" / "step_000002.jsonl").touch()

    started = train_command(RESUME="latest", LEARNING_RATE="0.01", HANABI_API_KEY="topsecret")
    output = started.result.output
    assert started.result.exit_code == 0, output
    assert len(started.commands) == 1
    for line in (
        f"RESUME=latest: resumes from step 2 ({run_folder}/checkpoint-2, saved ",
        f"    skipped: {run_folder}/.checkpoint-4.partial: was being written when its process "
        "ended.",
        f"    skipped: {run_folder}/checkpoint-3: no manifest.json",
        "    changed since: LEARNING_RATE: was 0.0015, is 0.01",
        "records after step 2 moved aside: 1 rows to metrics.discarded.jsonl, 1 files to "
        "episodes/discarded/",
        f"earlier settings kept in {run_folder}/settings-until-step-2.json",
    ):
        assert line in output
    _, _, changes = output.partition("changed since")
    assert "SAVE_STEPS" not in changes
    assert "topsecret" not in output
    resumed = read_resume(run_folder)
    assert resumed is not None
    assert resumed.step == 2
    assert resumed.checkpoint == run_folder / "checkpoint-2"
    kept_settings = (run_folder / "settings-until-step-2.json").read_text()
    assert json.loads(kept_settings) == json.loads(first_settings)
    assert read_settings(run_folder / "settings.json").learning_rate == 0.01
    assert (run_folder / "metrics.jsonl").read_text() == '{"step": 2}\n'
    assert not (run_folder / ".checkpoint-4.partial").exists()


@pytest.mark.parametrize("call", ["replace", "fsync", "rename"])
def test_a_start_on_a_full_disk_is_refused_and_the_same_command_goes_on_where_there_is_room(
    tmp_path: Path, train_command: TrainCommand, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    run_folder = tmp_path / "run"
    real: Callable[..., object] = getattr(os, call)

    def fill_the_disk_at(number: int) -> Started:
        """Start with a disk on which one of the calls that write fails."""
        num_calls = 0

        def refuse_one(*args: Any) -> object:
            nonlocal num_calls
            num_calls += 1
            if num_calls == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse_one)
            return train_command(RESUME="latest", LEARNING_RATE="0.01")

    num_refused = 0
    while True:
        shutil.rmtree(run_folder, ignore_errors=True)
        train_command(RESUME="latest")
        write_checkpoint_of(run_folder, 2)
        (run_folder / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n')
        (run_folder / "episodes").mkdir()
        (run_folder / "episodes" / "step_000002.jsonl").touch()
        started = fill_the_disk_at(num_refused + 1)
        if started.result.exit_code == 0:
            break
        num_refused += 1
        assert started.result.exit_code == 2, started.result.exception
        assert (
            "cannot be written (No space left on device). Free disk space" in started.result.stderr
        )
        assert started.commands == []
        again = train_command(RESUME="latest", LEARNING_RATE="0.01")
        assert again.result.exit_code == 0, again.result.output
        resumed = read_resume(run_folder)
        assert resumed is not None
        assert resumed.step == 2
        assert (run_folder / "metrics.jsonl").read_text() == '{"step": 2}\n'
        assert (run_folder / "metrics.discarded.jsonl").read_text() == '{"step": 3}\n'
        assert (run_folder / "episodes/discarded/step_000002.jsonl").is_file()
        kept_settings = json.loads((run_folder / "settings-until-step-2.json").read_text())
        assert kept_settings["settings"]["LEARNING_RATE"] == 0.0015
    assert num_refused >= 1


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a run folder but its lock."""
    contents = {}
    for path in folder.iterdir():
        if path.is_file() and path.name != ".lock":
            contents[path.name] = path.read_bytes()
    return contents


def test_a_resume_with_another_meaning_changes_nothing(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    train_command()
    write_checkpoint_of(run_folder, 2)
    (run_folder / "metrics.jsonl").write_text('{"step": 3}\n')
    before = files_of(run_folder)
    started = train_command(RESUME="latest", LORA_RANK="8", TEMPERATURE="0.5")
    assert started.result.exit_code == 2
    assert started.commands == []
    assert "LORA_RANK: was 16, is 8" in started.result.stderr
    assert "TEMPERATURE: was 1.0, is 0.5" in started.result.stderr
    assert files_of(run_folder) == before


def write_problems(path: Path, added: int) -> None:
    """Write sums with their answers, as a process that starts now reads them."""
    lines = []
    for number in range(300):
        problem = {"question": f"What is {number} + {added}?", "answer": str(number + added)}
        lines.append(json.dumps(problem))
    path.write_text("\n".join(lines))
    # A process reads a file once.
    problems._load_outside.cache_clear()
    base._spec.cache_clear()


@pytest.mark.parametrize("named_by", ["HANABI_PROBLEMS", "DATASET"])
def test_a_resume_refuses_other_problems_in_the_file_and_a_fork_tells_of_them(
    tmp_path: Path, train_command: TrainCommand, named_by: str
) -> None:
    run_folder = tmp_path / "run"
    path = tmp_path / "sums.jsonl"
    settings = {"HANABI_ENV": "vote", "HANABI_PROBLEMS": str(path), "HANABI_STYLE": "full"}
    if named_by == "DATASET":
        dataset = tmp_path / "tasks.jsonl"
        row = {
            "messages": [{"role": "user", "content": "Solve it."}],
            "env_config": {"preset": "vote", "style": "full", "problems": str(path)},
        }
        dataset.write_text(json.dumps(row))
        settings = {"HANABI_ENV": "vote", "DATASET": str(dataset)}
    write_problems(path, 1)
    assert train_command(**settings).result.exit_code == 0
    write_checkpoint_of(run_folder, 2)
    write_problems(path, 1)
    assert train_command(RESUME="latest", **settings).result.exit_code == 0

    before = files_of(run_folder)
    write_problems(path, 2)
    refused = train_command(RESUME="latest", **settings).result
    assert refused.exit_code == 2
    assert f"problems={path}: its content has changed, from sha256:" in refused.stderr
    assert "Set them back, or start a new run from the checkpoint with OUTPUT_DIR=" in (
        refused.stderr
    )
    assert files_of(run_folder) == before
    fork = train_command(RESUME=str(run_folder), OUTPUT_DIR=str(tmp_path / "fork"), **settings)
    assert fork.result.exit_code == 0, fork.result.output
    assert f"changed since: problems={path}: its content has changed" in fork.result.output


def test_a_resume_needs_the_options_that_the_run_was_started_with(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    train_command("--adam_beta2", "0.99", "--weight_decay", "0.1")
    write_checkpoint_of(run_folder, 2)
    again = train_command("--weight-decay=0.1", "--adam_beta2", "0.99", RESUME="latest")
    assert again.result.exit_code == 0, again.result.output
    assert "changed since" not in again.result.output

    before = files_of(run_folder)
    refused = train_command("--adam_beta2", "0.9", "--disable_tqdm", RESUME="latest").result
    assert refused.exit_code == 2
    for line in (
        "--adam_beta2 (option for ms-swift): was 0.99, is 0.9",
        "--disable_tqdm (option for ms-swift): was not given, is given",
        "--weight_decay (option for ms-swift): was 0.1, is not given",
        "Set them back, or start a new run from the checkpoint with OUTPUT_DIR=",
    ):
        assert line in refused.stderr
    assert files_of(run_folder) == before
    fork = train_command(RESUME=str(run_folder), OUTPUT_DIR=str(tmp_path / "fork")).result
    assert fork.exit_code == 0, fork.output
    assert "changed since: --weight_decay (option for ms-swift): was 0.1" in fork.output

    # What a version wrote that recorded neither.
    document = json.loads((run_folder / "settings.json").read_text())
    assert document.pop("options") == ["--weight-decay=0.1", "--adam_beta2", "0.99"]
    [game] = document.pop("games")
    assert game["name"] == "laptop"
    (run_folder / "settings.json").write_text(json.dumps(document))
    assert train_command(RESUME="latest").result.exit_code == 0


def test_a_dry_run_compares_the_options_with_those_of_the_run(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    train_command("--weight_decay", "0.1")
    write_checkpoint_of(tmp_path / "run", 2)
    shown = train_command("--dry-run", RESUME="latest").result.stdout
    assert "--weight_decay (option for ms-swift): was 0.1, is not given" in " ".join(shown.split())
    shown = train_command("--dry-run", "--weight_decay", "0.1", RESUME="latest").result.stdout
    assert "option for ms-swift" not in shown


def test_the_settings_of_a_run_hold_the_command_that_resumes_it(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    train_command(MAX_STEPS="2", LORA_RANK="8")
    document = json.loads((run_folder / "settings.json").read_text())
    command = document["resume_command"]
    assert "MAX_STEPS=2 LORA_RANK=8 " in command
    assert command.endswith(f" OUTPUT_DIR={run_folder} RESUME=latest {TRAIN_SCRIPT}")


def test_a_finished_run_says_how_to_extend_it_and_ends_well(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    train_command(MAX_STEPS="2", LORA_RANK="8")
    write_checkpoint_of(run_folder, 2)
    settings = (run_folder / "settings.json").read_text()
    started = train_command(
        RESUME="latest",
        MAX_STEPS="2",
        LORA_RANK="8",
        HANABI_API_KEY="topsecret",
        WANDB_NAME="my run",
    )
    output = started.result.output
    assert started.result.exit_code == 0
    assert started.commands == []
    assert "nothing left to train: step 2 of 2 is done." in output
    assert "To continue: " in output
    assert (
        f"LORA_RANK=8 WANDB_NAME='my run' OUTPUT_DIR={run_folder} RESUME=latest MAX_STEPS=4 "
        "bash tools/" in output
    )
    assert 'HANABI_API_KEY="$HANABI_API_KEY"' in output
    assert "topsecret" not in output
    assert (run_folder / "settings.json").read_text() == settings


class MirrorStandIn:
    """Stands for W&B's mirror, and notes how it was used."""

    def __init__(self) -> None:
        self.used: list[object] = []

    def __call__(self, run_folder: Path, from_step: int) -> "MirrorStandIn":
        self.used.append((run_folder, from_step))
        return self

    def close(self, exit_code: int) -> None:
        self.used.append(exit_code)


def test_a_finished_run_sends_what_wandb_lacks_of_it(
    tmp_path: Path, train_command: TrainCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = tmp_path / "run"
    settings = {"MAX_STEPS": "2", "REPORT_TO": "wandb", "WANDB_MODE": "offline"}
    train_command(**settings)
    write_checkpoint_of(run_folder, 2)
    mirror = MirrorStandIn()
    monkeypatch.setattr(train_module, "Mirror", mirror)
    monkeypatch.setattr(train_module, "set_up_logging", lambda file: None)
    record = WandbRecord(id="abcd1234")
    write_record(run_folder, record)
    train_command(RESUME="latest", **settings)
    assert mirror.used == []

    record.is_complete = False
    write_record(run_folder, record)
    train_command(RESUME="latest", **{**settings, "REPORT_TO": "none"})
    other_mode = train_command(RESUME="latest", **{**settings, "WANDB_MODE": "online"})
    assert "run this command with the run's WANDB_MODE=offline" in other_mode.result.output
    assert mirror.used == []
    started = train_command(RESUME="latest", **settings)
    assert started.result.exit_code == 0, started.result.output
    assert "W&B may lack the end of this run: sending it now" in started.result.output
    assert mirror.used == [(run_folder, 2), 0]
    assert started.commands == []


def test_a_finished_run_whose_last_validation_was_interrupted_makes_it_up(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    settings = {"MAX_STEPS": "2", "HANABI_EVAL_STEPS": "2", "SAVE_STEPS": "2"}
    train_command(**settings)
    write_checkpoint_of(run_folder, 2)
    write_validations(run_folder, [Validated(step=0, score=1.0, se=0.1)])
    started = train_command(RESUME="latest", **settings)
    assert "but its version was not validated: now" in started.result.output
    assert len(started.commands) == 1
    rows = [Validated(step=step, score=1.0, se=0.1) for step in (0, 2)]
    write_validations(run_folder, rows)
    started = train_command(RESUME="latest", **settings)
    assert "nothing left to train: step 2 of 2 is done." in started.result.output
    assert started.commands == []


def test_a_fork_that_was_killed_before_its_first_checkpoint_begins_with_the_same_one_again(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    train_command(MAX_STEPS="4")
    write_checkpoint_of(run_folder, 2)
    fork = tmp_path / "fork"
    fork_settings = {"OUTPUT_DIR": str(fork), "MAX_STEPS": "4", "TEMPERATURE": "0.5"}
    train_command(RESUME=str(run_folder), **fork_settings)
    (fork / "metrics.jsonl").write_text('{"step": 3}\n')
    started = train_command(RESUME="latest", **fork_settings)
    assert started.result.exit_code == 0, started.result.output
    assert f"RESUME=latest: resumes from step 2 ({run_folder}/checkpoint-2, saved " in (
        started.result.output
    )
    resumed = read_resume(fork)
    assert resumed is not None
    assert (resumed.checkpoint, resumed.step) == (run_folder / "checkpoint-2", 2)
    assert (fork / "metrics.jsonl").read_text() == ""
    assert len(started.commands) == 1


def test_a_fork_of_a_finished_run_leaves_no_folder(
    tmp_path: Path, train_command: TrainCommand
) -> None:
    run_folder = tmp_path / "run"
    train_command(MAX_STEPS="2", LORA_RANK="8")
    write_checkpoint_of(run_folder, 2)
    fork = tmp_path / "fork"
    started = train_command(
        RESUME=str(run_folder), OUTPUT_DIR=str(fork), MAX_STEPS="2", LORA_RANK="8"
    )
    assert started.result.exit_code == 0
    assert started.commands == []
    assert not fork.exists()
