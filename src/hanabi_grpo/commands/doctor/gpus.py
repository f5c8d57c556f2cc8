"""GPUs: which there are, how the two terminals share them, and what memory is free.

A driver that is too old for torch is found by `tools/setup.sh`, before anything is downloaded.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hanabi_grpo.commands.console import ROLLOUT_SCRIPT, TRAIN_SCRIPT
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.software import cuda_build, installed_version
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.gpus import Terminal, gpu_share

_SECONDS = 10
"""A driver in trouble can hang nvidia-smi."""
_QUERY = ("--query-gpu=index,name,memory.total,memory.free", "--format=csv,noheader,nounits")
_ONE_GPU_SHARE = 0.6
"""Largest share for the engine where the trainer sits on the same GPU."""


class Gpu(NamedTuple):
    """One GPU as nvidia-smi lists it; memory in MiB, 0 where it is not told."""

    number: str
    name: str
    total: int
    free: int


def list_gpus(path: str | None = None) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that the nvidia-smi of a PATH lists, and where there are none the reason."""
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return (), "nvidia-smi is not installed"
    try:
        answer = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi does not answer ({error})"
    if answer.returncode:
        said = (answer.stderr + answer.stdout).strip().partition("\n")[0]
        return (), f"nvidia-smi ends with {answer.returncode}: {said}"
    gpus = []
    for line in filter(None, map(str.strip, answer.stdout.splitlines())):
        index, name, *sizes = (part.strip() for part in line.split(","))
        # A GPU that is split (MIG) or shares its memory with the CPU has "[N/A]" here.
        total, free = (int(size) if size.isdecimal() else 0 for size in sizes)
        gpus.append(Gpu(index, name, total, free))
    return tuple(gpus), "" if gpus else "nvidia-smi lists none"


def gpu_checks(context: Context) -> Iterator[Check]:
    """Tell what GPUs there are and whether engine, torch and the two terminals' shares fit them."""
    gpus, reason = list_gpus(context.shell.get("PATH"))
    has_engine = installed_version("vllm") is not None
    shown = (
        f"{len(gpus)} × {gpus[0].name}, {gpus[0].total / 1024:.0f} GiB each"
        if gpus
        else f"none ({reason})"
    )
    if has_engine and not gpus:
        way = "nvidia-smi\nrm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"
        yield fail("gpus", f"{shown}, but the engine is vllm for CUDA", way)
    elif not gpus:
        yield ok("gpus", f"{shown}; everything runs on the CPU")
    elif not has_engine:
        way = "rm -rf .venv && SETUP_EXTRA=serve bash tools/setup.sh"
        yield warn(
            "gpus", f"{shown}, but the engine for CUDA is not installed, so they stay idle", way
        )
    else:
        yield ok("gpus", shown)
        if cuda_build() is not None:  # else the check of torch has said so
            yield _torch_sees(context, len(gpus))
        yield from _shares(context, gpus)


def _torch_sees(context: Context, count: int) -> Check:
    import torch

    visible = context.environ.get("CUDA_VISIBLE_DEVICES")
    expected = (
        count if visible is None else len([name for name in visible.split(",") if name.strip()])
    )
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    where = "" if visible is None else f" of CUDA_VISIBLE_DEVICES={visible}"
    if found == expected:
        return ok("torch gpus", f"torch sees {found}{where}")
    why = '.venv/bin/python -c "import torch; torch.cuda.init(); print(torch.cuda.device_count())"'
    return fail(
        "torch gpus",
        f"torch sees {found} GPUs, expected are {expected}{where}",
        f"nvidia-smi\n{why}",
    )


def _shares(context: Context, gpus: tuple[Gpu, ...]) -> Iterator[Check]:
    settings = context.settings
    profile = max(count for count in (1, 4, 8) if count <= len(gpus))
    layout = (
        f"export HANABI_PROFILE=tools/profiles/gpu-{profile}.env   # in both terminals; "
        "docs/hardware.md has others"
    )
    terminals: dict[Terminal, bool] = {"server": context.serves, "trainer": context.trains}
    try:
        names = {
            terminal: _names(context, terminal)
            for terminal, matters in terminals.items()
            if matters
        }
    except SettingsError as error:
        yield fail("gpu split", str(error), layout)
        return
    if not all(names.values()):
        yield skip(
            "gpu split", "the scripts are not in this folder, so their shares of GPUs are not known"
        )
        return
    known, wanted = {gpu.number for gpu in gpus}, {name for some in names.values() for name in some}
    if missing := sorted(name for name in wanted - known if name.isdecimal()):
        given = context.environ.get("CUDA_VISIBLE_DEVICES")
        whose = (
            f"CUDA_VISIBLE_DEVICES={given}" if given else "profile, .env or the scripts' defaults"
        )
        yield fail(
            "gpu split",
            f"{whose} name GPU {', '.join(missing)}, there are only {len(gpus)}",
            layout,
        )
        return
    needed = settings.vllm_tensor_parallel_size * settings.vllm_data_parallel_size
    if len(names) > 1:
        shared = sorted(set(names["server"]) & set(names["trainer"]))
        fits_one = needed == settings.nproc_per_node == len(wanted) == 1
        if not shared:
            parts = (f"{terminal} on {','.join(some)}" for terminal, some in names.items())
            yield ok("gpu split", ", ".join(parts))
        elif fits_one and settings.gpu_memory_utilization <= _ONE_GPU_SHARE:
            left = round(1 - settings.gpu_memory_utilization, 2)
            finding = (
                f"both terminals share GPU {shared[0]}, the trainer takes up to "
                f"{settings.trainer_memory:g} of it"
            )
            if settings.trainer_memory <= left:
                yield ok("gpu split", finding)
            else:
                finding += (
                    ": an engine that starts again may not find its "
                    f"{settings.gpu_memory_utilization:g}"
                )
                yield warn("gpu split", finding, f"export HANABI_TRAINER_MEMORY={left:g}")
        else:
            finding = (
                f"both terminals would take GPU {', '.join(shared)} (CUDA_VISIBLE_DEVICES "
                "is one list for both)"
            )
            yield warn("gpu split", finding, layout)
    if server := names.get("server"):
        sizes = (
            f"VLLM_TENSOR_PARALLEL_SIZE={settings.vllm_tensor_parallel_size} × "
            "VLLM_DATA_PARALLEL_SIZE="
        )
        yield _fits(
            "server gpus", f"{sizes}{settings.vllm_data_parallel_size}", needed, server, layout
        )
        yield _engine_memory(context, [gpu for gpu in gpus if gpu.number in server and gpu.total])
    if trainer := names.get("trainer"):
        sizes = f"NPROC_PER_NODE={settings.nproc_per_node}"
        yield _fits("trainer gpus", sizes, settings.nproc_per_node, trainer, layout)


def _fits(name: str, sizes: str, needed: int, gpus: list[str], layout: str) -> Check:
    if needed > len(gpus):
        return fail(
            name,
            f"{sizes} needs {needed} GPUs, the terminal has {len(gpus)} ({','.join(gpus)})",
            layout,
        )
    if needed < len(gpus):
        return warn(
            name, f"{sizes} uses {needed} of {len(gpus)} GPUs; the others stay idle", layout
        )
    return ok(name, f"{sizes} fits {len(gpus)}")


def _engine_memory(context: Context, gpus: list[Gpu]) -> Check:
    if not gpus:
        return skip("gpu memory", "nvidia-smi does not tell it")
    share = context.settings.gpu_memory_utilization
    tight = min(gpus, key=lambda gpu: gpu.free / gpu.total)
    free = tight.free / tight.total
    finding = (
        f"GPU {tight.number} has {tight.free / 1024:.1f} of {tight.total / 1024:.1f} GiB free, "
    )
    finding += f"the engine asks for {share:g} of it (HANABI_GPU_MEMORY_UTILIZATION)"
    if free >= share or context.server_is_up:
        return ok("gpu memory", finding)
    return fail(
        "gpu memory",
        finding,
        f"nvidia-smi\nexport HANABI_GPU_MEMORY_UTILIZATION={int(100 * free) / 100:g}",
    )


def _names(context: Context, terminal: Terminal) -> list[str]:
    """Return the GPUs of a terminal, by default those of its script; none where that is not in this
    folder.
    """
    share = gpu_share(context.loaded, terminal)
    if share is not None:
        return list(share.names)
    path = Path(ROLLOUT_SCRIPT if terminal == "server" else TRAIN_SCRIPT)
    match = (
        re.search(r"default_env CUDA_VISIBLE_DEVICES\w* (\S+)", path.read_text())
        if path.is_file()
        else None
    )
    return match[1].split(",") if match else []
