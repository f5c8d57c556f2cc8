"""`--print-config` and `--dry-run`: what they show and check, and that nothing is started or written."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from doctor_machines import ROOT, find, free_port, make_model, only
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor import starts
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.settings import load_settings, settings_json
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.saving import save_checkpoint
from small_models import small_model

RUNNER = CliRunner()
NAMES = ("player_0", "player_1")
TERMINALS = ("serve", "train")


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set variables under which nothing fails, and fail the test when anything becomes another process."""
    for name in [name for name in os.environ if "proxy" in name.lower()] + ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]:
        monkeypatch.delenv(name, raising=False)
    model, port = make_model(tmp_path / "model"), free_port()
    given = {"MODEL": model, "PORT": port, "VLLM_SERVER_PORT": port, "OUTPUT_DIR": tmp_path / "run"}
    for name, value in {**given, "REPORT_TO": "none"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "execvpe", lambda *call: pytest.fail(f"started {call}"))
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole checkpoint of two adapters of rank 8, and beside it the base model's fingerprint in its manifest."""
    folder = tmp_path_factory.mktemp("starts")
    base = make_model(folder / "model")
    with torch.random.fork_rng():
        model = adapters.add_adapters(small_model(), NAMES, rank=8, alpha=16, seed=1)
    facts = {"model_fingerprint": model_fingerprint(base)}
    (folder / "run").mkdir()
    return save_checkpoint(model, NAMES, folder / "run", 7, facts)


def seen(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, list(words))
    return result.exit_code, result.stdout


def test_print_config_shows_every_setting_with_its_origin(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_API_KEY", "topsecret")
    for command in TERMINALS:
        code, text = seen(command, "--print-config")
        rows = {cells[0]: cells[1:] for line in text.splitlines() if len(cells := line.strip("│").split()) >= 3}
        assert code == 0 and rows["REPORT_TO"] == ["│", "none", "│", "shell"] and rows["BETA"][-1] == "default"
        code, text = seen(command, "--print-config", "--json")
        assert (code, json.loads(text)) == (0, settings_json(load_settings())) and "topsecret" not in text
        for words, refusal in (
            (("--print-config", "--dry-run"), "choose one of --print-config and --dry-run"),
            (("--json",), "--json is for --print-config and --dry-run."),
        ):
            result = RUNNER.invoke(app, [command, *words])
            assert result.exit_code == 2 and refusal in result.stderr


@pytest.mark.parametrize("command", TERMINALS)
def test_a_dry_run_checks_shows_and_leaves_no_trace(
    command: str, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    before = sorted(tmp_path.rglob("*"))
    code, text = seen(command, "--dry-run", "--mine", "1")
    assert code == 0, text
    assert sorted(tmp_path.rglob("*")) == before
    assert "dry run: nothing was started. Without --dry-run this would be:" in text
    assert " 0 fail" in text
    shown, gpu = text.partition("dry run:")[2], "3" if command == "train" else "2"
    assert f"\nGPUs {gpu}: CUDA_VISIBLE_DEVICES=2,3 (shell) has more than " in text and f"    GPUs: {gpu}\n" in shown
    if command == "train":
        assert f"-m hanabi_grpo.training.main --settings {tmp_path}/run/settings.json --mine 1\n" in shown
        assert "after waiting up to 600 s for the server at http://127.0.0.1:" in shown
        assert "500 steps of 8 deals × 16 games = 128 games" in text
    else:
        assert "-m hanabi_grpo.cli serve --mine 1\n" in shown
        assert "listening on http://127.0.0.1:" in shown


def test_a_failed_check_is_exit_code_1_and_the_others_are_made(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_DEALS_PER_STEP", "3")
    monkeypatch.setenv("PER_DEVICE_TRAIN_BATCH_SIZE", "5")
    monkeypatch.setenv("RESUME", "no/such/run")
    code, text = seen("train", "--dry-run", "--json")
    report = json.loads(text)
    failed = {check["name"] for check in report["doctor"]["checks"] if check["status"] == "fail"}
    assert (code, failed, report["would_start"]) == (1, {"batch", "run folder"}, None)
    code, text = seen("train", "--dry-run")
    assert code == 1 and "nothing was started, and nothing could be: see what failed above." in text


def test_a_run_folder_in_use_and_a_damaged_resume_are_found_before_the_trainer(tmp_path: Path) -> None:
    check = only(find(starts.run_folder_checks, OUTPUT_DIR=tmp_path / "new"))
    assert (check.status, check.finding) == ("ok", str(tmp_path / "new")) and not (tmp_path / "new").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metrics.jsonl").touch()
    check = only(find(starts.run_folder_checks, OUTPUT_DIR=tmp_path / "used"))
    assert check.status == "fail" and "holds another run already (metrics.jsonl)" in check.finding
    check = only(find(starts.run_folder_checks, OUTPUT_DIR=tmp_path / "used" / "metrics.jsonl"))
    assert check.status == "fail" and "is a file" in check.finding
    check = only(find(starts.run_folder_checks, RESUME=tmp_path / "none"))
    assert check.status == "fail" and "no such folder" in check.finding
    check = only(find(starts.run_folder_checks, RESUME="latest", OUTPUT_DIR=tmp_path / "new"))
    assert check.status == "ok" and "starts at step 0" in check.finding


def test_a_start_is_read_as_the_trainer_reads_it(checkpoint: Path, tmp_path: Path) -> None:
    model = checkpoint.parents[1] / "model"
    given = {"MODEL": model, "LORA_RANK": 8, "LORA_ALPHA": 16, "OUTPUT_DIR": tmp_path / "run"}
    assert find(starts.start_checks, **given) == []
    checks = find(starts.start_checks, HANABI_START_FROM=checkpoint.parent, **given)
    assert [(check.status, check.finding) for check in checks] == [
        ("ok", f"player_0 from player_0 of {checkpoint}, step 7"),
        ("ok", f"player_1 from player_1 of {checkpoint}, step 7"),
    ]
    for wrong, finding in (
        ({"HANABI_START_FROM": "no/such/run"}, "no/such/run: no such folder"),
        ({"HANABI_START_FROM": f"{checkpoint}:player_4"}, "no adapter player_4 in it"),
        ({"HANABI_START_FROM": checkpoint, "LORA_RANK": 16}, "LORA_RANK was 8 there and is 16 here"),
        ({"HANABI_START_FROM": checkpoint, "LORA_ALPHA": 32}, "LORA_ALPHA was 16 there and is 32 here"),
    ):
        check = find(starts.start_checks, **{**given, **wrong})[0]
        assert check.status == "fail" and finding in check.finding and check.remedy
    other = make_model(tmp_path / "other", max_position_embeddings=2048)
    check = find(starts.start_checks, **{**given, "HANABI_START_FROM": checkpoint, "MODEL": other})[0]
    assert check.status == "fail" and "was trained with another base model" in check.finding


@pytest.mark.parametrize("option", ["--print-config", "--dry-run"])
def test_the_scripts_make_nothing_and_keep_standard_output_for_the_command(option: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "tools", checkout / "tools")
    (checkout / "tools" / "setup.sh").write_text("echo set-up\n")
    program = checkout / ".venv" / "bin" / "hanabi-grpo"
    program.parent.mkdir(parents=True)
    program.write_text('#!/usr/bin/env bash\necho "$*|${REPORT_TO:-}|${CUDA_VISIBLE_DEVICES_SERVER:-}"\n')
    program.chmod(0o755)
    (checkout / ".venv/lib/python3.11/site-packages/vllm-0.32.0.dist-info").mkdir(parents=True)

    def script(name: str, *options: str, said: str = "set-up\n", **environ: str) -> str:
        command = ["bash", str(checkout / "tools" / name), *options]
        given = {"PATH": "/usr/bin:/bin", **environ}
        done = subprocess.run(command, env=given, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert not said or done.stderr == said
        return done.stdout

    rollout, train = "rollout/rollout_hanabi_gym.sh", "train/train_grpo_hanabi_server_wandb.sh"
    assert script(rollout, option, "--json") == f"serve {option} --json||0,1,2,3\n"
    profile = {"HANABI_PROFILE": "tools/profiles/gpu-4.env"}
    assert script(rollout, option, **profile) == f"serve {option}||\n"
    (checkout / ".venv/lib/python3.11/site-packages/vllm-0.32.0.dist-info").rmdir()
    assert script(rollout, option) == f"serve {option}||\n"
    assert script(train, option, said="") == f"train {option}|wandb|\n"
