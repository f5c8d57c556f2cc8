"""What nvidia-smi reports about the GPUs of this machine."""

import re
import shutil
import subprocess
from typing import NamedTuple

_SECONDS = 10
"""Timeout: a faulty driver can make nvidia-smi hang."""
_FORMAT = "--format=csv,noheader,nounits"
_MEMORY = "--query-gpu=index,name,memory.total,memory.free"
_CAPABILITY = "--query-gpu=index,compute_cap"
_DECIMAL = re.compile(r"\d+\.\d+")


class Gpu(NamedTuple):
    """One GPU as nvidia-smi lists it."""

    number: str
    name: str
    total: int
    """MiB of memory; 0 if nvidia-smi does not report it. The same holds for `free`."""
    free: int


class NoAnswerError(Exception):
    """nvidia-smi gives no answer; the message says why."""


def ask(*options: str, path: str | None) -> str:
    """Return what nvidia-smi prints.

    Args:
        options: Its command-line options.
        path: The PATH to search for it; None: that of this process.

    Raises:
        NoAnswerError: It is not installed, hangs or fails.
    """
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        raise NoAnswerError("nvidia-smi is not installed")
    try:
        answer = subprocess.run(
            [program, *options], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"nvidia-smi does not answer ({error})") from error
    if answer.returncode:
        output = (answer.stderr + answer.stdout).strip()
        first_line, _, _ = output.partition("\n")
        raise NoAnswerError(f"nvidia-smi exited with {answer.returncode}: {first_line}")
    return answer.stdout


def list_gpus(path: str | None = None) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that nvidia-smi lists, and the reason if there are none.

    Args:
        path: The PATH to search for nvidia-smi; None: that of this process.
    """
    try:
        listing = ask(_MEMORY, _FORMAT, path=path)
    except NoAnswerError as error:
        return (), str(error)
    gpus = []
    for line in listing.splitlines():
        if line.strip():
            gpus.append(_parse_gpu(line))
    return tuple(gpus), "" if gpus else "nvidia-smi lists no GPUs"


def compute_capabilities(path: str | None = None) -> dict[str, float]:
    """Return the compute capability of each GPU by its number, e.g. {"0": 9.0}.

    GPUs of which nvidia-smi does not report it are left out.

    Args:
        path: The PATH to search for nvidia-smi; None: that of this process.

    Raises:
        NoAnswerError: nvidia-smi gives no answer; that of an old driver does not know the question.
    """
    capabilities = {}
    for line in ask(_CAPABILITY, _FORMAT, path=path).splitlines():
        number, _, capability = line.partition(",")
        if _DECIMAL.fullmatch(capability.strip()):
            capabilities[number.strip()] = float(capability)
    return capabilities


def _parse_gpu(line: str) -> Gpu:
    """Parse a line such as "0, NVIDIA H100 80GB HBM3, 81559, 80000"."""
    number, name, total, free = (part.strip() for part in line.split(","))
    return Gpu(number, name, _parse_size(total), _parse_size(free))


def _parse_size(text: str) -> int:
    # A GPU that is split (MIG) or shares its memory with the CPU has "[N/A]" here.
    return int(text) if text.isdecimal() else 0
