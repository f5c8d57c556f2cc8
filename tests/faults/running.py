"""Trainers that run while something else is broken, and what can be asked of them."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import torch
from safetensors.torch import save

from conftest_e2e import ROOT, Server, read_json_lines, reset_signals
from hanabi_grpo.server.adapter_files import linear_shapes

ENDLESS = 100_000
"""More steps than any test waits for."""
RANK = 8
UNSHARE = ("unshare", "--map-root-user", "--mount")
"""A mount namespace of its own, in which a user may mount a file system."""


def can_mount(folder: Path) -> bool:
    """Tell whether a file system of one's own can be mounted here."""
    mount = f"mount -t tmpfs -o size=1m tmpfs {folder}"
    trial = subprocess.run([*UNSHARE, "sh", "-c", mount], capture_output=True, check=False)
    return trial.returncode == 0


def adapter_for(model: str, a: float, b: float) -> tuple[bytes, list[str]]:
    """Return an upload for a model's linear layers, and its target modules.

    Args:
        model: The folder of the base model.
        a: Value of every entry of the A matrices.
        b: Value of every entry of the B matrices.
    """
    tensors = {}
    target_modules = set()
    for module, (num_out, num_in) in linear_shapes(model).items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.full((RANK, num_in), a)
        tensors[f"{name}.lora_B.weight"] = torch.full((num_out, RANK), b)
        target_modules.add(module.rpartition(".")[2])
    return save(tensors), sorted(target_modules)


class Training:
    """A train script in the background."""

    def __init__(
        self, server: Server, folder: Path, *, disk_mib: int | None = None, **variables: object
    ) -> None:
        """Start it.

        Args:
            server: The server that plays the games.
            folder: The run folder; the trainer's output is written beside it.
            disk_mib: Size of a disk of its own that holds the run folder alone; needs `unshare`.
            variables: Environment variables for the trainer.
        """
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
        defaults = {
            "MAX_STEPS": ENDLESS,
            "SAVE_STEPS": 1,
            "SAVE_TOTAL_LIMIT": 3,
            "HANABI_EPISODES_EVERY": 50,
        }
        environment = server.environment(OUTPUT_DIR=folder, **{**defaults, **variables})
        command = ["bash", str(ROOT / "tools/train/train_grpo_msswift.sh")]
        if disk_mib is not None:
            folder.mkdir(parents=True)
            mount = f"mount -t tmpfs -o size={disk_mib}m tmpfs {folder}"
            command = [*UNSHARE, "sh", "-c", f'{mount} && exec "$0" "$@"', *command]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=reset_signals,
            )
        if disk_mib is not None:
            # The mount is seen by the trainer's processes alone, and by the world through them.
            self.folder = Path(f"/proc/{self.process.pid}/root{folder}")

    @property
    def text(self) -> str:
        """The trainer's output so far."""
        return self.log.read_text(errors="replace")

    def steps(self) -> list[int]:
        """Return the numbers of the recorded steps, without a torn last line."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        whole_lines = path.read_text().split("\n")[:-1]
        return [json.loads(line)["step"] for line in whole_lines]

    def last_step(self) -> int:
        """Return the number of the newest recorded step, 0 before the first one."""
        steps = self.steps()
        return steps[-1] if steps else 0

    def incidents(self, kind: str) -> int:
        """Return how many incidents of a kind the run recorded."""
        path = self.folder / "incidents.jsonl"
        if not path.exists():
            return 0
        return sum(incident["kind"] == kind for incident in read_json_lines(path))

    def wait_for_step(self, number: int, seconds: float = 600.0) -> None:
        """Return when a step is recorded.

        The test fails when the trainer ends before, or when the time is up.
        """
        deadline = time.monotonic() + seconds
        while self.last_step() < number:
            code = self.process.poll()
            assert code is None, f"the trainer ended with {code}:\n{self.text[-4000:]}"
            assert time.monotonic() < deadline, (
                f"no step {number} after {seconds} s:\n{self.text[-4000:]}"
            )
            time.sleep(0.1)

    def more_steps(self, count: int, seconds: float = 600.0) -> None:
        """Return when `count` more steps than now are recorded."""
        self.wait_for_step(self.last_step() + count, seconds)

    def kill(self) -> None:
        """Send SIGKILL to the trainer and all its processes, as a power failure ends them."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            trainer = psutil.Process(self.process.pid)
            family = [trainer, *trainer.children(recursive=True)]
        for process in family:
            process.kill()
        self.process.wait(timeout=30)

    def interrupt(self) -> int:
        """Press Ctrl-C once and return the exit code."""
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout=300)


def serving_process(server: Server) -> psutil.Process:
    """Return the process that serves; `server.process` is its parent."""
    children = psutil.Process(server.process.pid).children()
    serving = []
    for child in children:
        if "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
            serving.append(child)
    [process] = serving
    return process


def engine_core(server: Server) -> psutil.Process:
    """Return the process in which vLLM computes."""
    cores = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        if "EngineCore" in " ".join(child.cmdline()) or "EngineCore" in child.name():
            cores.append(child)
    [core] = cores
    return core
