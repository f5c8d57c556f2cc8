"""Checks of the run folder, of the disk, and of shared memory."""

import os
import shlex
import shutil
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.commands.doctor.context import Context, amount
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.rollout.datasets import named_setups, num_steps
from hanabi_grpo.runs.resume import ResumePlan, resume_lines
from hanabi_grpo.runs.run_folder import check_fresh, holder_of
from hanabi_grpo.runs.start_record import recorded_games
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import num_kept_versions

_SHARED_MEMORY = Path("/dev/shm")
_VERSIONS_IN_FLIGHT = 3
"""Versions of an adapter at once: one is served, one is staged, and running games still use a
third. With HANABI_OVERLAP above 1, games use that many older ones."""
_PARALLEL_BYTES = 1 << 30
"""What processes that share a model or gradients exchange through shared memory (NCCL)."""
_LARGE_MODEL_BYTES = 200 * 10**6
"""Three versions of one adapter of rank 16 for a model of 4 billion parameters.

Assumed if the model is unknown; containers have 64 MB by default.
"""
_FLOAT32_BYTES = 4
"""Bytes of a weight in versions that are kept besides the trained one: versions that games still
use, the reference of the KL penalty, and the best version of a phase."""
_CHECKPOINT_BYTES_PER_PARAMETER = 3 * _FLOAT32_BYTES
"""A float32 weight and the optimizer's two moments."""
_UNKNOWN_STEPS = 1 << 31
"""Steps of a run whose dataset cannot be read: more than any checkpoint has."""


def run_folder_checks(context: Context) -> Check:
    """Report where the run writes and what it continues from, or why it cannot."""
    settings = context.settings
    resume, problem = context.planned
    folder = settings.output_dir if resume is None else resume.run_folder
    new_run = "unset OUTPUT_DIR RESUME   # a new run in a new folder of outputs/"
    holder = holder_of(folder) if folder else ""
    lines = ""
    try:
        if resume is not None:
            lines = _lines_of(context, resume)
        elif folder is not None and folder.exists() and not holder:
            check_fresh(folder)
    except HanabiGrpoError as error:
        problem = str(error)
    if problem:
        return fail("run folder", problem, new_run)
    if folder is None:
        return ok("run folder", "a new one in outputs/")
    if holder:
        watch = (
            f".venv/bin/hanabi-grpo watch {shlex.quote(str(folder))}   "
            "# that run is active, leave it alone"
        )
        finding = f"{folder}: another trainer is using it ({holder})"
        return fail("run folder", finding, f"{new_run}\n{watch}")
    return ok("run folder", f"{folder}{lines}")


def _lines_of(context: Context, resume: ResumePlan) -> str:
    """Return what the trainer would print about a resume, on one line; raises its errors."""
    steps = _UNKNOWN_STEPS
    games = None
    if context.rows:
        steps = num_steps(context.settings, context.rows)
        games = recorded_games(named_setups(context.rows))
    text = ""
    for line in resume_lines(resume, context.settings, steps, games=games, options=context.options):
        text += f"; {line.strip()}"
    return text


def disk_checks(context: Context) -> Check:
    """Compare the free disk space with the checkpoints that a run keeps."""
    settings = context.settings
    wanted = (settings.output_dir or Path("outputs")).absolute()
    parent = next(path for path in (wanted, *wanted.parents) if path.exists())
    elsewhere = 'export OUTPUT_DIR="$HOME/hanabi-run"'
    if not parent.is_dir():
        return fail("disk", f"{parent} is a file, so nothing can be created below it", elsewhere)
    free = shutil.disk_usage(parent).free
    if not os.access(parent, os.W_OK):
        return fail("disk", f"{parent} is not writable", elsewhere)
    free_amount = amount(free, "B")
    checkpoint = _bytes_per_parameter(settings) * context.run_adapter_parameters
    if not checkpoint:
        finding = (
            f"{free_amount} free at {parent}; the size of a checkpoint is unknown without the model"
        )
        return skip("disk", finding)
    kept = num_kept_versions(settings)
    size = amount(checkpoint, "B")
    finding = f"{free_amount} free at {parent}, checkpoints take {kept} × {size}"
    # A new checkpoint is written before the oldest one is deleted.
    if free < (kept + 1) * checkpoint:
        shown_parent = shlex.quote(str(parent))
        remedy = (
            f'df -h {shown_parent}\nexport OUTPUT_DIR="a folder on a larger disk" '
            "SAVE_TOTAL_LIMIT=1"
        )
        return fail("disk", finding, remedy)
    return ok("disk", finding)


def _bytes_per_parameter(settings: Settings) -> int:
    """Return the bytes of a checkpoint for each parameter of an adapter."""
    others = settings.overlap
    if settings.reference != "base":
        others += 1
    if settings.update == "best_response":
        others += 1
    # Such a critic is an adapter as large as its player's, with its own moments.
    learners = 2 if settings.critic == "adapter" else 1
    return learners * _CHECKPOINT_BYTES_PER_PARAMETER + others * _FLOAT32_BYTES


def shared_memory_checks(context: Context) -> Check | None:
    """Compare shared memory with the adapters and with what parallel processes exchange."""
    settings = context.settings
    if not context.serves and settings.nproc_per_node == 1:
        return None
    if not _SHARED_MEMORY.is_dir():
        finding = f"there is no {_SHARED_MEMORY}; adapters go to the temporary folder"
        return skip("shared memory", finding)
    free = shutil.disk_usage(_SHARED_MEMORY).free
    finding = f"{amount(free, 'B')} free in {_SHARED_MEMORY}"
    needed = 0
    parameters = context.run_adapter_parameters
    if context.serves and parameters:
        bytes_per_number = 4 if settings.dtype == "float32" else 2
        versions = _VERSIONS_IN_FLIGHT + max(0, settings.overlap - 1)
        needed = versions * bytes_per_number * parameters
        finding += f", adapters take up to {amount(needed, 'B')}"
    elif context.serves and settings.device == "gpu":
        needed = _LARGE_MODEL_BYTES
        finding += f", adapters of a model for GPUs take at least {amount(needed, 'B')}"
    if _has_parallel_processes(context):
        needed += _PARALLEL_BYTES
        finding += f", parallel processes about {amount(_PARALLEL_BYTES, 'B')}"
    if free < needed:
        remedy = f"mount -o remount,size=8G {_SHARED_MEMORY}\ndocker run --shm-size=8g …"
        return fail("shared memory", finding, remedy)
    return ok("shared memory", finding)


def _has_parallel_processes(context: Context) -> bool:
    """Tell whether several processes of one terminal work on the same model."""
    settings = context.settings
    if context.trains and settings.nproc_per_node > 1:
        return True
    parallel = max(settings.vllm_tensor_parallel_size, settings.vllm_data_parallel_size)
    return context.serves and parallel > 1
