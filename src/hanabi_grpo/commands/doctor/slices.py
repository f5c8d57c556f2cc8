"""The check of MIG slices: does this machine have them, and can vLLM use the server's?

vLLM (0.32) asks NVML for the index of the server's slice, which is the slice's number inside its
GPU, and then for the GPU with that index (`NvmlCudaPlatform`). It therefore mistakes the first
slice of any GPU for GPU 0, and any other slice for another GPU. Without such a GPU, it dies.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hanabi_grpo.commands.doctor import nvidia_smi
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.settings.pass_through import Terminal

_GPU_LINE = re.compile(r"GPU (\d+):")
_SLICE_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)")
_PREFIX = "MIG-"
"""Prefix of the names of slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice as `nvidia-smi -L` lists it."""

    gpu: int
    """Number of the slice's GPU."""
    index: int
    """Number of the slice inside its GPU."""
    size: str
    """E.g. "3g.40gb"."""
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What `nvidia-smi -L` prints."""

    num_gpus: int
    slices: tuple[Slice, ...]


def parse_listing(text: str) -> Listing:
    """Parse the output of `nvidia-smi -L`.

    Example: "GPU 0: NVIDIA H100 (UUID: GPU-5d)" with, below it,
    "  MIG 3g.40gb     Device  0: (UUID: MIG-c6)".
    """
    numbers: list[int] = []
    slices = []
    for line in text.splitlines():
        gpu = _GPU_LINE.match(line)
        if gpu:
            numbers.append(int(gpu[1]))
            continue
        found = _SLICE_LINE.match(line)
        if found and numbers:
            size, index, uuid = found.groups()
            slices.append(Slice(gpu=numbers[-1], index=int(index), size=size, uuid=uuid))
    return Listing(num_gpus=len(numbers), slices=tuple(slices))


def check_slices(
    gpus_of: Mapping[Terminal, Sequence[str]], path: str | None = None
) -> Iterator[Check]:
    """Check the slices that terminals name; nothing if they name none.

    Args:
        gpus_of: The GPUs of each terminal: numbers or UUIDs.
        path: The PATH to search for nvidia-smi; None: that of this process.
    """
    wanted = {}
    for terminal, names in gpus_of.items():
        slices = [name for name in names if name.startswith(_PREFIX)]
        if slices:
            wanted[terminal] = slices
    if not wanted:
        return
    try:
        listing = parse_listing(nvidia_smi.ask("-L", path=path))
    except nvidia_smi.NoAnswerError as error:
        yield skip("mig slices", str(error))
        return
    places = []
    for terminal, names in wanted.items():
        check = _check_terminal(terminal, names, listing)
        if check.status == "ok":
            places.append(check.finding)
        else:
            yield check
    if len(places) == len(wanted):
        yield ok("mig slices", ", ".join(places))


def _check_terminal(terminal: Terminal, names: Sequence[str], listing: Listing) -> Check:
    """Check that a terminal names one slice, of this machine, that vLLM can use."""
    variable = f"CUDA_VISIBLE_DEVICES_{terminal.upper()}"
    set_variable = f"nvidia-smi -L\nexport {variable}="
    first_slices = [one for one in listing.slices if one.index == 0]
    proposed = first_slices if terminal == "server" else listing.slices
    remedy = set_variable + (proposed[0].uuid if proposed else "MIG-…")
    if len(names) > 1:
        finding = (
            f"the {terminal} has {len(names)} slices; CUDA shows only the first one to a process"
        )
        return fail("mig slices", finding, set_variable + names[0])
    [name] = names
    slices = {one.uuid: one for one in listing.slices}
    if name not in slices:
        finding = f"the {terminal}'s {name} is not one of the {len(slices)} slices of this machine"
        return fail("mig slices", finding, remedy)
    own = slices[name]
    place = f"the {terminal} has slice {own.index} of GPU {own.gpu} ({own.size})"
    if terminal != "server" or own.index == 0:
        return ok("mig slices", place)
    place += f"; vLLM mistakes it for GPU {own.index}"
    if own.index < listing.num_gpus:
        finding = f"{place}, and uses the memory size and type of that GPU"
        return warn("mig slices", finding, remedy)
    finding = f"{place}, which does not exist: the engine would die (NVMLError_InvalidArgument)"
    return fail("mig slices", finding, remedy)
