import io
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from doctor_machines import NOWHERE, ROOT, free_port
from hanabi_grpo.cli import GROUPS, RENAMED, all_commands, app
from hanabi_grpo.commands.console import offline_environ, server_command, trainer_command
from hanabi_grpo.commands.nodes import trainer_argv
from hanabi_grpo.commands.train import trainer_environ, wait_for_server
from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.resume import read_resume
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings, read_settings
from torn_checkpoints import write as write_checkpoint_of

RUNNER = CliRunner()


def loaded(**environ: str) -> LoadedSettings:
    return load_settings(environ, NOWHERE)


class _Health(BaseHTTPRequestHandler):
    """Answers like the rollout server: 503 twice, then 200; 401 without the key where one is set."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.seen.append((self.path, self.headers.get("Authorization")))
        if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
            status = 401
        else:
            status = 200 if len(server.seen) > 2 else 503
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"status": "starting", "seconds": 146.2}' if status == 503 else b'{"instance_id": "i"}')

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def health_server() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), _Health)
    server.seen, server.key = [], None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def recording() -> Console:
    return Console(record=True, width=200, file=io.StringIO())


def test_commands_stand_in_groups_and_an_old_name_tells_the_new_one() -> None:
    text = RUNNER.invoke(app, ["--help"]).output
    panels = [line for line in text.splitlines() if line.startswith("╭─")]
    assert [re.findall(r"\w+", line)[0] for line in panels] == ["Options", *GROUPS]
    for old, new in RENAMED.items():
        result = RUNNER.invoke(app, [old, "outputs/run"])
        assert (result.exit_code, result.stderr) == (2, f"error: hanabi-grpo {old}: is now hanabi-grpo {new}.\n")
        assert new.split()[0] in all_commands()


def test_every_command_has_help_and_a_version_and_starts_nothing() -> None:
    for words in ([], *([command] for command in all_commands())):
        for option in ("-h", "--help"):
            result = RUNNER.invoke(app, [*words, option])
            assert result.exit_code == 0 and "Usage" in result.output
        for more in ([], ["--mine", "1"]):
            result = RUNNER.invoke(app, [*words, *more, "--version"])
            assert (result.exit_code, result.output) == (0, f"hanabi-grpo {metadata.version('hanabi-grpo')}\n")


def test_the_other_terminals_commands_repeat_what_only_this_shell_knows() -> None:
    here = loaded(MODEL="my model", HANABI_PLAYERS="3", VLLM_SERVER_PORT="8123", HANABI_API_KEY="k", LEARNING_RATE="1")
    assert server_command(here) == (
        "HANABI_PLAYERS=3 MODEL='my model' HANABI_API_KEY=\"$HANABI_API_KEY\" PORT=8123 "
        "bash tools/rollout/rollout_hanabi_gym.sh"
    )
    there = loaded(PORT="8123", HANABI_HOST="0.0.0.0", HANABI_API_KEY="k" * 16)
    assert trainer_command(there) == (
        'HANABI_API_KEY="$HANABI_API_KEY" VLLM_SERVER_PORT=8123 bash tools/train/train_grpo_msswift.sh'
    )
    assert server_command(loaded()) == "bash tools/rollout/rollout_hanabi_gym.sh"


def test_the_trainers_process_its_key_and_its_hubs(tmp_path: Path) -> None:
    path = Path("outputs/x/settings.json")
    assert trainer_argv(Settings(nproc_per_node=1), path, ["--a", "1"]) == [
        *(sys.executable, "-m", "hanabi_grpo.training.main", "--settings", "outputs/x/settings.json", "--a", "1")
    ]
    assert trainer_argv(Settings(nproc_per_node=4), path, []) == [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "4"),
        *("-m", "hanabi_grpo.training.main", "--settings", "outputs/x/settings.json"),
    ]
    (tmp_path / ".env").write_text("HANABI_API_KEY=topsecret\n")
    assert trainer_environ(load_settings({}, tmp_path / ".env"))["HANABI_API_KEY"] == "topsecret"
    assert offline_environ(Settings(model=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in offline_environ(Settings(model="Qwen/Qwen3-4B"))


def test_waiting_ends_when_the_server_is_healthy(health_server: Any) -> None:
    console = recording()
    here = loaded(VLLM_SERVER_PORT=str(health_server.server_port), HANABI_API_KEY="k")
    health_server.key = "k"
    wait_for_server(here, console, poll=0.01)
    assert health_server.seen == [("/health/", "Bearer k")] * 3
    text = console.export_text()
    where = f"the rollout server at http://127.0.0.1:{health_server.server_port}"
    assert text.splitlines() == [f"{where} is starting, 146 s", f"{where} is ready."]


def test_a_refused_key_and_a_server_that_never_comes_are_errors(health_server: Any) -> None:
    health_server.key = "other"
    here = loaded(VLLM_SERVER_PORT=str(health_server.server_port), HANABI_API_KEY="k")
    with pytest.raises(ServerError, match=r"refuses this key .401.: set the same HANABI_API_KEY in both terminals"):
        wait_for_server(here, recording(), poll=0.01)
    console = recording()
    here = loaded(VLLM_SERVER_PORT=str(free_port()), HANABI_SERVER_TIMEOUT="2.5")
    with pytest.raises(ServerError) as caught:
        wait_for_server(here, console, remind=0.05, poll=0.01)
    assert "after 2.5 s (ConnectError" in str(caught.value)
    assert f"PORT={here.settings.vllm_server_port} bash tools/rollout/rollout_hanabi_gym.sh" in str(caught.value)
    assert console.export_text().count("Type in another terminal") > 1


def train_environ(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HANABI_")}
    (tmp_path / "model").mkdir(exist_ok=True)
    return {**kept, "MODEL": str(tmp_path / "model"), "OUTPUT_DIR": str(tmp_path / "run"), **more}


def test_train_stops_at_the_first_impossible_thing_and_leaves_no_folder(
    tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    cases = {
        "NPROC_PER_NODE=3": {"NPROC_PER_NODE": "3"},
        "none.jsonl": {"DATASET": str(tmp_path / "none.jsonl")},
        "hanabi-grpo tiny-model": {"MODEL": str(tmp_path / "no-model")},
        "no rollout server at": {"HANABI_SERVER_TIMEOUT": "0.1", "VLLM_SERVER_PORT": str(free_port())},
    }
    for expected, more in cases.items():
        process = start_process(
            [sys.executable, "-m", "hanabi_grpo.cli", "train"],
            env=train_environ(tmp_path, **more),
            cwd=ROOT,
            stdout=-1,
            stderr=-1,
        )
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2 and expected in errors and "Traceback" not in errors
        assert not (tmp_path / "run").exists()


@pytest.fixture
def train_command(
    tmp_path: Path, health_server: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, list[Any]]]:
    """Run `hanabi-grpo train` up to the exec that would start the trainer; returns its result and that call."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def command(*options: str, **environ: str) -> tuple[Any, list[Any]]:
        became: list[Any] = []
        given = train_environ(tmp_path, VLLM_SERVER_PORT=str(health_server.server_port), **environ)
        with monkeypatch.context() as patch:
            patch.setattr(os, "execvpe", lambda *call: became.append(call))
            for name, value in given.items():
                patch.setenv(name, value)
            return RUNNER.invoke(app, ["train", *options]), became

    return command


def test_train_leaves_its_settings_and_becomes_the_trainer(tmp_path: Path, train_command: Any) -> None:
    result, [(program, argv, passed)] = train_command("--weight_decay", "0", HANABI_API_KEY="topsecret")
    assert result.exit_code == 0, result.output
    path = tmp_path / "run" / "settings.json"
    assert program == sys.executable
    assert argv[1:] == ["-m", "hanabi_grpo.training.main", "--settings", str(path), "--weight_decay", "0"]
    assert passed["HANABI_API_KEY"] == "topsecret" and passed["HF_HUB_OFFLINE"] == "1"
    assert "topsecret" not in path.read_text() + result.output
    again = read_settings(path)
    assert (again.output_dir, again.max_steps) == (tmp_path / "run", 500)
    assert "500 steps of 8 deals × 16 games = 128 games, 256 trajectories" in result.output


def test_a_killed_run_goes_on_from_its_newest_valid_checkpoint(tmp_path: Path, train_command: Any) -> None:
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

    result, became = train_command(RESUME="latest", LEARNING_RATE="0.01", HANABI_API_KEY="topsecret")
    assert result.exit_code == 0 and len(became) == 1, result.output
    for line in (
        f"RESUME=latest: goes on from step 2 ({run}/checkpoint-2, saved ",
        f"    passed over: {run}/.checkpoint-4.partial: was being written when its process ended.",
        f"    passed over: {run}/checkpoint-3: no manifest.json",
        "    changed since: LEARNING_RATE: was 0.0015, is 0.01",
        "records after step 2 moved aside: 1 rows to metrics.discarded.jsonl, 1 files to episodes/discarded/",
        f"settings until here: {run}/settings-until-step-2.json",
    ):
        assert line in result.output
    assert "SAVE_STEPS" not in result.output.partition("changed since")[2] and "topsecret" not in result.output
    resumed = read_resume(run)
    assert resumed is not None and (resumed.step, resumed.checkpoint) == (2, run / "checkpoint-2")
    assert json.loads((run / "settings-until-step-2.json").read_text()) == json.loads(first)
    assert read_settings(run / "settings.json").learning_rate == 0.01
    assert (run / "metrics.jsonl").read_text() == '{"step": 2}\n' and not (run / ".checkpoint-4.partial").exists()


def test_a_resume_with_another_meaning_changes_nothing(tmp_path: Path, train_command: Any) -> None:
    run = tmp_path / "run"
    train_command()
    write_checkpoint_of(run, 2)
    (run / "metrics.jsonl").write_text('{"step": 3}\n')
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != ".lock"}
    result, became = train_command(RESUME="latest", LORA_RANK="8", TEMPERATURE="0.5")
    assert result.exit_code == 2 and not became
    assert "LORA_RANK: was 16, is 8" in result.stderr and "TEMPERATURE: was 1.0, is 0.5" in result.stderr
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != ".lock"} == before


def test_a_fork_starts_a_run_of_its_own(tmp_path: Path, train_command: Any) -> None:
    train_command()
    write_checkpoint_of(tmp_path / "run", 2)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 3}\n')
    fork = {"RESUME": str(tmp_path / "run"), "OUTPUT_DIR": str(tmp_path / "fork")}
    result, became = train_command(**fork, TEMPERATURE="0.5")
    assert result.exit_code == 0 and len(became) == 1, result.output
    assert "changed since: TEMPERATURE: was 1.0, is 0.5" in result.output
    resumed = read_resume(tmp_path / "fork")
    assert resumed is not None and resumed.checkpoint == tmp_path / "run" / "checkpoint-2"
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 3}\n'
    result, became = train_command(**fork)
    assert result.exit_code == 2 and not became and "by RESUME=latest" in result.stderr


def test_a_finished_run_says_how_to_extend_it_and_ends_well(tmp_path: Path, train_command: Any) -> None:
    run = tmp_path / "run"
    train_command(MAX_STEPS="2", LORA_RANK="8")
    write_checkpoint_of(run, 2)
    settings = (run / "settings.json").read_text()
    # What a trainer prints when it is stopped.
    again = json.loads(settings)["resume_command"]
    assert "MAX_STEPS=2 LORA_RANK=8 " in again
    assert again.endswith(f" OUTPUT_DIR={run} RESUME=latest bash tools/train/train_grpo_msswift.sh")
    result, became = train_command(
        RESUME="latest", MAX_STEPS="2", LORA_RANK="8", HANABI_API_KEY="topsecret", WANDB_NAME="my run"
    )
    assert result.exit_code == 0 and not became
    assert "nothing left to train: step 2 of 2 is done." in result.output and "topsecret" not in result.output
    assert "To go on: " in result.output and 'HANABI_API_KEY="$HANABI_API_KEY"' in result.output
    assert f"LORA_RANK=8 WANDB_NAME='my run' OUTPUT_DIR={run} RESUME=latest MAX_STEPS=4 bash tools/" in result.output
    assert (run / "settings.json").read_text() == settings
    fork = train_command(RESUME=str(run), OUTPUT_DIR=str(tmp_path / "fork"), MAX_STEPS="2", LORA_RANK="8")
    assert fork[0].exit_code == 0 and not fork[1] and not (tmp_path / "fork").exists()
