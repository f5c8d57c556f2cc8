"""The run folder: whose it is, what a run goes on from; and the machine's disk and memory-backed
storage.
"""

import os
import shutil
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.rollout.datasets import num_steps
from hanabi_grpo.runs.resume import resume_lines
from hanabi_grpo.runs.run_folder import check_fresh, holder_of

_VERSIONS_IN_FLIGHT = 3
"""Served, staged, and one that games in flight still use."""
_PARALLEL_SHM = 1 << 30
"""What processes that share a model or gradients exchange through it (NCCL)."""
_LARGE_MODELS_SHM = 200 * 10**6
"""Three versions of one adapter of rank 16 for a model of 4 billion parameters; containers have 64
MB.
"""


def run_folder_checks(context: Context) -> Check:
    """Tell where the run writes and what it goes on from, or why it cannot."""
    settings, (resume, problem) = context.settings, context.planned
    fresh = "unset OUTPUT_DIR RESUME   # a new run in a new folder of outputs/"
    folder = settings.output_dir if resume is None else resume.run_folder
    holder, said = holder_of(folder) if folder else "", ""
    try:
        if resume is not None:
            steps = num_steps(settings, context.rows) if context.rows else 1 << 31
            said = "; ".join(
                ["", *(line.strip() for line in resume_lines(resume, settings, steps))]
            )
        elif folder is not None and folder.exists() and not holder:
            check_fresh(folder)
    except HanabiGrpoError as error:
        problem = str(error)
    if problem:
        return fail("run folder", problem, fresh)
    if folder is None:
        return ok("run folder", "a new one in outputs/")
    if holder:
        look = f".venv/bin/hanabi-grpo watch {folder}   # it goes on, leave it alone"
        return fail(
            "run folder", f"{folder}: another trainer works in it ({holder})", f"{fresh}\n{look}"
        )
    return ok("run folder", f"{folder}{said}")


def disk_checks(context: Context) -> Check:
    """Compare free space with the checkpoints that a run keeps."""
    settings = context.settings
    wanted = (settings.output_dir or Path("outputs")).absolute()
    parent = next(folder for folder in (wanted, *wanted.parents) if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if not os.access(parent, os.W_OK):
        return fail(
            "disk", f"{parent} cannot be written to", 'export OUTPUT_DIR="$HOME/hanabi-run"'
        )
    if not context.adapter_parameters:
        return skip(
            "disk",
            f"{amount(free, 'B')} free at {parent}; the size of a checkpoint needs the model",
        )
    # Float32 weights and the optimizer's two moments.
    checkpoint = 3 * 4 * context.adapter_parameters * context.num_adapters
    size = amount(checkpoint, "B")
    text = (
        f"{amount(free, 'B')} free at {parent}, checkpoints take {settings.save_total_limit} × "
        f"{size}"
    )
    # One more than is kept: the new one is written before the oldest goes.
    if free < (settings.save_total_limit + 1) * checkpoint:
        way = f'df -h {parent}\nexport OUTPUT_DIR="a folder on a larger disk" SAVE_TOTAL_LIMIT=1'
        return fail("disk", text, way)
    return ok("disk", text)


def shared_memory_checks(context: Context) -> Check | None:
    """Compare memory-backed storage with the server's adapters and with what parallel processes
    exchange there.
    """
    home, settings = Path("/dev/shm"), context.settings
    if not context.serves and settings.nproc_per_node == 1:
        return None
    if not home.is_dir():
        return skip("shared memory", "there is no /dev/shm; adapters go to the temporary folder")
    free, parameters = shutil.disk_usage(home).free, context.adapter_parameters
    text, needed = f"{amount(free, 'B')} free in {home}", 0
    if context.serves and parameters:
        needed = (
            _VERSIONS_IN_FLIGHT
            * (4 if settings.dtype == "float32" else 2)
            * parameters
            * context.num_adapters
        )
        text += f", adapters take up to {amount(needed, 'B')}"
    elif context.serves and settings.device == "gpu":
        needed = _LARGE_MODELS_SHM
        text += f", adapters of a model for GPUs take at least {amount(needed, 'B')}"
    engine = (
        max(settings.vllm_tensor_parallel_size, settings.vllm_data_parallel_size)
        if context.serves
        else 1
    )
    if max(engine, settings.nproc_per_node if context.trains else 1) > 1:
        needed += _PARALLEL_SHM
        text += f", parallel processes about {amount(_PARALLEL_SHM, 'B')}"
    if free < needed:
        return fail(
            "shared memory", text, f"mount -o remount,size=8G {home}\ndocker run --shm-size=8g …"
        )
    return ok("shared memory", text)
