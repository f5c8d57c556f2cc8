"""`hanabi-grpo train` and `serve`: --print-config, --dry-run, waiting for the server, and becoming
the trainer.
"""

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from doctor_machines import NOWHERE, ROOT, answering, find, free_port, make_model, only
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor.machine import run_folder_checks
from hanabi_grpo.commands.train import wait_for_server
from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.resume import read_resume
from hanabi_grpo.settings import LoadedSettings, load_settings, read_settings, settings_json
from hanabi_grpo.training import main as trainer
from torn_checkpoints import write as write_checkpoint_of

RUNNER = CliRunner()
NAMES = ("player_0", "player_1")
TERMINALS = ("serve", "train")


def seen(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, list(words))
    return result.exit_code, result.stdout


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set variables under which nothing fails, and fail the test when anything becomes another
    process.
    """
    for name in [name for name in os.environ if "proxy" in name.lower()] + [
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
    ]:
        monkeypatch.delenv(name, raising=False)
    model, port = make_model(tmp_path / "model"), free_port()
    given = {"MODEL": model, "PORT": port, "VLLM_SERVER_PORT": port, "OUTPUT_DIR": tmp_path / "run"}
    for name, value in {**given, "REPORT_TO": "none"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(trainer, "main", lambda argv: pytest.fail(f"started {argv}"))
    return model


def test_print_config_shows_every_setting_with_its_origin(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANABI_API_KEY", "topsecret")
    for command in TERMINALS:
        code, text = seen(command, "--print-config")
        rows = {
            cells[0]: cells[1:]
            for line in text.splitlines()
            if len(cells := line.strip("│").split()) >= 3
        }
        assert (
            code == 0
            and rows["REPORT_TO"] == ["│", "none", "│", "shell"]
            and rows["BETA"][-1] == "default"
        )
        code, text = seen(command, "--print-config", "--json")
        assert (code, json.loads(text)) == (
            0,
            settings_json(load_settings()),
        ) and "topsecret" not in text
        for words in (("--print-config", "--dry-run"), ("--json",)):
            result = RUNNER.invoke(app, [command, *words])
            assert (
                result.exit_code == 2
                and "give one of --print-config and --dry-run" in result.stderr
            )


@pytest.mark.parametrize("command", TERMINALS)
def test_a_dry_run_checks_shows_and_leaves_no_trace(
    command: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    before = sorted(tmp_path.rglob("*"))
    code, text = seen(command, "--dry-run", "--mine", "1")
    assert code == 0, text
    assert sorted(tmp_path.rglob("*")) == before and " 0 fail" in text
    shown, gpu = (
        text.partition("dry run: nothing was started. Without")[2],
        "3" if command == "train" else "2",
    )
    assert f"\nGPUs {gpu}: CUDA_VISIBLE_DEVICES=2,3 (shell) has more than " in text
    assert f"    CUDA_VISIBLE_DEVICES={gpu} " in shown
    if command == "train":
        assert (
            f"-m hanabi_grpo.training.main --settings {tmp_path}/run/settings.json --mine 1\n"
            in shown
        )
        assert "after waiting up to 600 s for the server at http://127.0.0.1:" in shown
    else:
        assert "-m hanabi_grpo.cli serve --mine 1\n" in shown
        assert "listening on http://127.0.0.1:" in shown


def test_a_run_folder_in_use_and_a_damaged_resume_are_found_before_the_trainer(
    tmp_path: Path,
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metrics.jsonl").touch()
    for given, status, finding in (
        ({"OUTPUT_DIR": tmp_path / "new"}, "ok", str(tmp_path / "new")),
        ({"OUTPUT_DIR": tmp_path / "used"}, "fail", "holds another run already (metrics.jsonl)"),
        ({"OUTPUT_DIR": tmp_path / "used" / "metrics.jsonl"}, "fail", "is a file"),
        ({"RESUME": tmp_path / "none"}, "fail", "no such folder"),
        ({"RESUME": "latest", "OUTPUT_DIR": tmp_path / "new"}, "ok", "starts at step 0"),
    ):
        check = only(find(run_folder_checks, **given))
        assert check.status == status and finding in check.finding
    assert not (tmp_path / "new").exists()


@pytest.fixture
def server_port() -> Iterator[int]:
    with answering(200, {"instance_id": "i"}, starting=2) as port:
        yield port


def loaded(**environ: str) -> LoadedSettings:
    return load_settings(environ, NOWHERE)


def recording() -> Console:
    return Console(record=True, width=200, file=io.StringIO())


def test_waiting_ends_when_the_server_is_healthy() -> None:
    console = recording()
    with answering(200, {"instance_id": "i"}, key="k", starting=2) as port:
        wait_for_server(loaded(VLLM_SERVER_PORT=str(port), HANABI_API_KEY="k"), console, poll=0.01)
    where = f"the rollout server at http://127.0.0.1:{port}"
    assert console.export_text().splitlines() == [
        f"{where} is starting, 146 s",
        f"{where} is ready.",
    ]


def test_a_refused_key_and_a_server_that_never_comes_are_errors() -> None:
    refused = r"refuses this key .401.: set the same HANABI_API_KEY in both terminals"
    with answering(200, {}, key="other") as port, pytest.raises(ServerError, match=refused):
        wait_for_server(
            loaded(VLLM_SERVER_PORT=str(port), HANABI_API_KEY="k"), recording(), poll=0.01
        )
    console, here = (
        recording(),
        loaded(VLLM_SERVER_PORT=str(free_port()), HANABI_SERVER_TIMEOUT="2.5"),
    )
    with pytest.raises(ServerError, match=r"after 2\.5 s \(ConnectError") as caught:
        wait_for_server(here, console, remind=0.05, poll=0.01)
    assert f"PORT={here.settings.vllm_server_port} bash tools/rollout/rollout_hanabi_gym.sh" in str(
        caught.value
    )
    assert console.export_text().count("Type in another terminal") > 1


def train_environ(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HANABI_")}
    (tmp_path / "model").mkdir(exist_ok=True)
    return {**kept, "MODEL": str(tmp_path / "model"), "OUTPUT_DIR": str(tmp_path / "run"), **more}


@pytest.fixture
def train_command(
    tmp_path: Path, server_port: int, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, list[Any]]]:
    """Run `hanabi-grpo train` up to where it becomes the trainer; returns its result and the
    trainer's words.
    """
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def command(*options: str, **environ: str) -> tuple[Any, list[Any]]:
        became: list[Any] = []
        given = train_environ(tmp_path, **{"VLLM_SERVER_PORT": str(server_port), **environ})
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "main", lambda argv: became.append(argv) or 0)
            patch.setattr(trainer, "import_parts", lambda: iter(()))
            patch.setattr(os, "execvp", lambda program, argv: became.append(argv))
            # The key is left there.
            patch.setenv("HANABI_API_KEY", "")
            for name, value in given.items():
                patch.setenv(name, value)
            return RUNNER.invoke(app, ["train", *options]), became

    return command


def test_train_stops_at_the_first_impossible_thing_and_leaves_no_folder(
    tmp_path: Path, train_command: Any
) -> None:
    for expected, more in {
        "NPROC_PER_NODE=3": {"NPROC_PER_NODE": "3"},
        "none.jsonl": {"DATASET": str(tmp_path / "none.jsonl")},
        "hanabi-grpo tiny-model": {"MODEL": str(tmp_path / "no-model")},
        "no rollout server at": {
            "HANABI_SERVER_TIMEOUT": "0.1",
            "VLLM_SERVER_PORT": str(free_port()),
        },
    }.items():
        result, became = train_command(**more)
        assert result.exit_code == 2 and expected in result.stderr and not became
        assert not (tmp_path / "run").exists()


def test_a_machine_that_joins_makes_no_run_folder_and_waits_for_no_server(
    tmp_path: Path, train_command: Any
) -> None:
    two = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "DEEPSPEED": "zero2"}
    said, [argv] = train_command("--weight_decay", "0", **two)
    assert "joining node 0\nstarting " in said.output and "waiting for" not in said.output
    assert argv[1:7] == ["-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"]
    assert argv[-4:] == ["--settings", f"{tmp_path}/run/settings.json", "--weight_decay", "0"]
    assert not (tmp_path / "run").exists()


def test_train_leaves_its_settings_and_becomes_the_trainer(
    tmp_path: Path, train_command: Any
) -> None:
    result, [argv] = train_command("--weight_decay", "0", HANABI_API_KEY="topsecret")
    assert result.exit_code == 0, result.output
    path = tmp_path / "run" / "settings.json"
    assert argv == ["--settings", str(path), "--weight_decay", "0"]
    assert "topsecret" not in path.read_text() + result.output
    again = read_settings(path)
    assert (again.output_dir, again.max_steps) == (tmp_path / "run", 500)
    assert "500 steps of 8 tasks × 16 games, 256 trajectories" in result.output


def test_a_killed_run_goes_on_from_its_newest_valid_checkpoint(
    tmp_path: Path, train_command: Any
) -> None:
    run = tmp_path / "run"
    result, _ = train_command(RESUME="latest")
    assert f"nothing to go on from in {run} yet: starts at step 0" in result.output
    assert read_resume(run) is None
    first = (run / "settings.json").read_text()
    for step in (2, 3):
        write_checkpoint_of(run, step)
    (run / "checkpoint-3" / "manifest.json").unlink()
    (run / ".checkpoint-4.partial").mkdir()
    (run / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n')
    (run / "episodes").mkdir()
    (run / "episodes" / "step_000002.jsonl").touch()

    result, became = train_command(
        RESUME="latest", LEARNING_RATE="0.01", HANABI_API_KEY="topsecret"
    )
    assert result.exit_code == 0 and len(became) == 1, result.output
    for line in (
        f"RESUME=latest: goes on from step 2 ({run}/checkpoint-2, saved ",
        f"    skipped: {run}/.checkpoint-4.partial: was being written when its process ended.",
        f"    skipped: {run}/checkpoint-3: no manifest.json",
        "    changed since: LEARNING_RATE: was 0.0015, is 0.01",
        "records after step 2 moved aside: 1 rows to metrics.discarded.jsonl, 1 files to "
        "episodes/discarded/",
        f"settings until here: {run}/settings-until-step-2.json",
    ):
        assert line in result.output
    assert (
        "SAVE_STEPS" not in result.output.partition("changed since")[2]
        and "topsecret" not in result.output
    )
    resumed = read_resume(run)
    assert resumed is not None and (resumed.step, resumed.checkpoint) == (2, run / "checkpoint-2")
    assert json.loads((run / "settings-until-step-2.json").read_text()) == json.loads(first)
    assert read_settings(run / "settings.json").learning_rate == 0.01
    assert (run / "metrics.jsonl").read_text() == '{"step": 2}\n' and not (
        run / ".checkpoint-4.partial"
    ).exists()


def test_a_resume_with_another_meaning_changes_nothing(tmp_path: Path, train_command: Any) -> None:
    run = tmp_path / "run"
    train_command()
    write_checkpoint_of(run, 2)
    (run / "metrics.jsonl").write_text('{"step": 3}\n')
    before = {
        path.name: path.read_bytes()
        for path in run.iterdir()
        if path.is_file() and path.name != ".lock"
    }
    result, became = train_command(RESUME="latest", LORA_RANK="8", TEMPERATURE="0.5")
    assert result.exit_code == 2 and not became
    assert (
        "LORA_RANK: was 16, is 8" in result.stderr
        and "TEMPERATURE: was 1.0, is 0.5" in result.stderr
    )
    assert {
        path.name: path.read_bytes()
        for path in run.iterdir()
        if path.is_file() and path.name != ".lock"
    } == before


def test_a_finished_run_says_how_to_extend_it_and_ends_well(
    tmp_path: Path, train_command: Any
) -> None:
    run = tmp_path / "run"
    train_command(MAX_STEPS="2", LORA_RANK="8")
    write_checkpoint_of(run, 2)
    settings = (run / "settings.json").read_text()
    # What a trainer prints when it is stopped.
    again = json.loads(settings)["resume_command"]
    assert "MAX_STEPS=2 LORA_RANK=8 " in again
    assert again.endswith(f" OUTPUT_DIR={run} RESUME=latest bash tools/train/train_grpo_msswift.sh")
    result, became = train_command(
        RESUME="latest",
        MAX_STEPS="2",
        LORA_RANK="8",
        HANABI_API_KEY="topsecret",
        WANDB_NAME="my run",
    )
    assert result.exit_code == 0 and not became
    assert (
        "nothing left to train: step 2 of 2 is done." in result.output
        and "topsecret" not in result.output
    )
    assert "To go on: " in result.output and 'HANABI_API_KEY="$HANABI_API_KEY"' in result.output
    assert (
        f"LORA_RANK=8 WANDB_NAME='my run' OUTPUT_DIR={run} RESUME=latest MAX_STEPS=4 bash tools/"
        in result.output
    )
    assert (run / "settings.json").read_text() == settings
    fork = train_command(
        RESUME=str(run), OUTPUT_DIR=str(tmp_path / "fork"), MAX_STEPS="2", LORA_RANK="8"
    )
    assert fork[0].exit_code == 0 and not fork[1] and not (tmp_path / "fork").exists()
