"""Trainers that run while something else is broken, and what can be asked of them."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import torch
from safetensors.torch import save

from conftest_e2e import ROOT, Server, reset_signals
from hanabi_grpo.server.adapter_files import linear_shapes

ENDLESS = 100_000


def adapter_for(model: str, a: float, b: float) -> tuple[bytes, list[str]]:
    """Return an upload for a model's linear layers with these values in A and B, and its target
    modules.
    """
    shapes, tensors = linear_shapes(model), {}
    for module, (num_out, num_in) in shapes.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.full((8, num_in), a)
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.full((num_out, 8), b)
    return save(tensors), sorted({module.rpartition(".")[2] for module in shapes})


class Training:
    """A train script in the background."""

    def __init__(self, server: Server, folder: Path, **variables: object) -> None:
        """Start it."""
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
        given = {
            "MAX_STEPS": ENDLESS,
            "SAVE_STEPS": 1,
            "SAVE_TOTAL_LIMIT": 3,
            "HANABI_EPISODES_EVERY": 50,
            **variables,
        }
        environment = server.environment(OUTPUT_DIR=folder, **given)
        command = ["bash", str(ROOT / "tools/train/train_grpo_msswift.sh")]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=reset_signals,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def steps(self) -> list[int]:
        """Return the numbers of the recorded steps, a torn last line left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line)["step"] for line in lines]

    def incidents(self, kind: str) -> int:
        path = self.folder / "incidents.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(json.loads(line)["kind"] == kind for line in lines)

    def wait_for_step(self, number: int, seconds: float = 300.0) -> None:
        """Return when step `number` is recorded; fail when the trainer ends before or the time is
        up.
        """
        deadline = time.monotonic() + seconds
        while (self.steps() or [0])[-1] < number:
            code = self.process.poll()
            assert code is None, f"the trainer ended with {code}:\n{self.text[-4000:]}"
            assert time.monotonic() < deadline, (
                f"no step {number} after {seconds} s:\n{self.text[-4000:]}"
            )
            time.sleep(0.1)

    def more_steps(self, count: int, seconds: float = 300.0) -> None:
        """Return when `count` more steps than now are recorded."""
        self.wait_for_step((self.steps() or [0])[-1] + count, seconds)

    def kill(self) -> None:
        """SIGKILL to the trainer and all its processes, as a machine that goes down does."""
        try:
            family = [
                psutil.Process(self.process.pid),
                *psutil.Process(self.process.pid).children(recursive=True),
            ]
        except psutil.NoSuchProcess:
            family = []
        for one in family:
            one.kill()
        self.process.wait(timeout=30)

    def interrupt(self) -> int:
        """Press Ctrl-C once and return the exit code."""
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(timeout=120)


def serving_process(server: Server) -> psutil.Process:
    """Return the process that serves; `server.process` is its parent."""
    children = psutil.Process(server.process.pid).children()
    [serving] = [
        one for one in children if "multiprocessing.resource_tracker" not in " ".join(one.cmdline())
    ]
    return serving


def engine_core(server: Server) -> psutil.Process:
    """Return the process in which vLLM computes."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    [core] = [
        one
        for one in children
        if "EngineCore" in " ".join(one.cmdline()) or "EngineCore" in one.name()
    ]
    return core
