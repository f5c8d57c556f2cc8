"""Runs of the real trainer whose games come from scripts, and what their checkpoints hold.

A run has no server: scripted_trainer.py or overlap_trainer.py plays in the trainer's own process.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from plans import PLAN_VARIABLE, Plan
from safetensors.torch import load_file

from conftest_e2e import ROOT, TRAINER_SECONDS, VARIABLES, clean_environment
from hanabi_grpo.runs.history import cut_records
from hanabi_grpo.settings import load_settings, settings_json
from ports import free_port
from trainer_host import Request, next_host

SCRIPTED_TRAINER = Path(__file__).parent / "scripted_trainer.py"
OVERLAP_TRAINER = Path(__file__).parent / "overlap_trainer.py"
PRINTED_CHARACTERS = 30_000
"""How much of a failed run's output is shown; the launcher alone ends with some 4,000."""
PLAYERS = ("player_0", "player_1")

_ZERO_2 = {"DEEPSPEED": "zero2", "NPROC_PER_NODE": "2", "PER_DEVICE_TRAIN_BATCH_SIZE": "4"}
STAGES = {
    "torch": {},
    "zero1": {"DEEPSPEED": "zero1", "NPROC_PER_NODE": "2", "PER_DEVICE_TRAIN_BATCH_SIZE": "4"},
    "zero2": _ZERO_2,
    # Each process holds a part of each weight.
    "zero3": {**_ZERO_2, "DEEPSPEED": "zero3"},
    # Each process has a copy of the critics.
    "critics": {**_ZERO_2, "HANABI_ADVANTAGE": "ippo"},
    # The players change seats between the steps that are compared.
    "mappo": {**_ZERO_2, "HANABI_ADVANTAGE": "mappo", "HANABI_SWAP_EVERY": "1"},
    "qmix": {"HANABI_ADVANTAGE": "qmix", "HANABI_SWAP_EVERY": "1"},
    # As on GPUs, with layers that are computed again for their gradient. The scripted sampler
    # rounds nothing. Few games, because a CPU that cannot multiply in 16 bits is ten times as slow.
    "bfloat16": {
        **_ZERO_2,
        "HANABI_DTYPE": "bfloat16",
        "NUM_GENERATIONS": "4",
        "HANABI_PARITY_TOLERANCE": "0.05",
        "HANABI_UPDATES_PER_STEP": "2",
    },
}
"""Variables of each way to train that is tested."""

OPTIONS = {
    "bfloat16": (
        "--gradient_checkpointing",
        "true",
        "--gradient_checkpointing_kwargs",
        '{"use_reentrant": true}',
    )
}
"""Options for ms-swift, by stage."""


def num_processes(stage: str) -> int:
    """Return the number of trainer processes of a stage."""
    return int(STAGES[stage].get("NPROC_PER_NODE", "1"))


def write_settings(folder: Path, model: Path, **variables: str) -> Path:
    """Write settings.json as `hanabi-grpo train` does, and return its path.

    Args:
        folder: The run folder; made where it does not exist.
        model: The folder of the base model.
        variables: Environment variables in addition to `conftest_e2e.VARIABLES`.
    """
    folder.mkdir(exist_ok=True)
    os.environ.update(VARIABLES)
    os.environ["MODEL"] = str(model)
    os.environ["DATASET"] = str(Path("data/hanabi.laptop.jsonl").resolve())
    os.environ["OUTPUT_DIR"] = str(folder)
    os.environ["LR_SCHEDULER_TYPE"] = "linear"
    os.environ["WARMUP_STEPS"] = "2"
    os.environ["SAVE_TOTAL_LIMIT"] = "20"
    os.environ.update(variables)
    path = folder / "settings.json"
    path.write_text(json.dumps(settings_json(load_settings())))
    return path


def start_trainer(
    settings: Path,
    *,
    script: Path = SCRIPTED_TRAINER,
    processes: int = 1,
    plan: Plan | None = None,
    options: Sequence[str] = (),
) -> "subprocess.Popen[str]":
    """Start a scripted trainer in processes of its own, to watch it or to end it.

    Args:
        settings: The settings.json of the run.
        script: The trainer's file.
        processes: Number of trainer processes.
        plan: What goes wrong; nothing when none is given.
        options: Options for ms-swift.
    """
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node", str(processes)]
    command += [str(script), "--settings", str(settings), *options]
    return subprocess.Popen(
        command,
        env=_environment(plan),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _environment(plan: Plan | None) -> dict[str, str]:
    environment = clean_environment()
    # For those that are not forked.
    environment["PYTHONPATH"] = str(ROOT / "tests")
    environment[PLAN_VARIABLE] = (plan or Plan()).to_json()
    return environment


def run_trainer(
    settings: Path,
    *,
    script: Path = SCRIPTED_TRAINER,
    processes: int = 1,
    plan: Plan | None = None,
    options: Sequence[str] = (),
    exit_code: int = 0,
) -> str:
    """Run a scripted trainer to its end and return its output.

    It is forked from a process that has imported a trainer's libraries.

    Args:
        settings: The settings.json of the run.
        script: The trainer's file.
        processes: Number of trainer processes.
        plan: What goes wrong; nothing when none is given.
        options: Options for ms-swift.
        exit_code: How it must end.
    """
    request = Request(
        script=str(script),
        arguments=["--settings", str(settings), *options],
        environment=_environment(plan),
        folder=str(Path.cwd()),
        processes=processes,
        port=free_port(),
    )
    code, output = next_host().run(request, TRAINER_SECONDS)
    assert code == exit_code, output[-PRINTED_CHARACTERS:]
    return output


def resume_at(folder: Path, step: int) -> None:
    """Do what `RESUME` does in `hanabi-grpo train`, without its server."""
    point = {"checkpoint": str(folder / f"checkpoint-{step}"), "step": step, "skipped": []}
    (folder / "resume.json").write_text(json.dumps(point))


def cut_at(whole: Path, folder: Path, step: int) -> None:
    """Make a run that ended right after a checkpoint, out of one that saved every step, to resume.

    Args:
        whole: The folder of the run.
        folder: Where to make the other one.
        step: The step of the last checkpoint that it has.
    """
    shutil.copytree(whole, folder)
    for checkpoint in folder.glob("checkpoint-*"):
        if int(checkpoint.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(checkpoint)
    cut_records(folder, step)
    resume_at(folder, step)


def load_adapter(checkpoint: Path, player: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a player's adapter."""
    return load_file(checkpoint / player / "adapter_model.safetensors")


def player_state(checkpoint: Path, player: str) -> dict[str, torch.Tensor]:
    """Return a player's weights, moments, counters, and the critics that it learns with.

    Critics that belong to no single player are part of every player's state.
    """
    state = load_adapter(checkpoint, player)
    moments = load_file(checkpoint / "trainer/optimizer.safetensors")
    for name, tensor in moments.items():
        if f".{player}." in name:
            state[name] = tensor
    assert any(name.endswith("|exp_avg") for name in state), sorted(state)[:4]
    for group in json.loads((checkpoint / "trainer/groups.json").read_text()):
        if group["player"] == player:
            state["updates"] = torch.tensor(group["updates"], dtype=torch.float64)
            state["lr"] = torch.tensor(group["lr"], dtype=torch.float64)
    critics = checkpoint / "trainer/critics.safetensors"
    if critics.exists():
        others = tuple(f"{other}|" for other in PLAYERS if other != player)
        for name, tensor in load_file(critics).items():
            if not name.startswith(others):
                state[name] = tensor
    return state


def differing_names(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that are not bit-identical; both must have the same names."""
    assert tensors.keys() == others.keys()
    return [name for name in tensors if not torch.equal(tensors[name], others[name])]
