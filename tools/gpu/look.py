"""Call B: what a machine has of the engine's requirements.

It needs only the standard library, for machines where nothing is installed.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

_TORCH = """
import json
import torch
print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))
"""
"""Prints the versions of torch and CUDA, and whether a GPU is available."""
ENGINE_LIBRARY = "vllm._C_stable_libtorch"
"""The engine's compiled library, which vLLM's platform for CUDA imports first."""
_GPU_QUERY = [
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total,mig.mode.current",
    "--format=csv,noheader",
]
_SECONDS = 120
"""Time limit of a command."""


def look() -> dict[str, Any]:
    """Return what the machine has, by name.

    This includes compiler, headers, GPUs, space in /dev/shm and on disk, torch, the engine's
    library, and every package.
    """
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    shm = Path("/dev/shm")
    return {
        "python": sys.version.split()[0],
        "gpus": _output_of(_GPU_QUERY).splitlines(),
        "compiler": shutil.which("gcc") or shutil.which("clang"),
        "Python.h": str(header) if header.is_file() else None,
        "nvcc": _output_of(["nvcc", "--version"]).splitlines()[-1:],
        "shm_bytes": shutil.disk_usage(shm).free if shm.is_dir() else None,
        "disk_bytes": shutil.disk_usage(".").free,
        "torch": _evaluate(_TORCH),
        ENGINE_LIBRARY: engine_library(),
        "packages": _packages(),
    }


def engine_library() -> Any:
    """Return "ok" if the engine's compiled library can be loaded, else why it cannot."""
    # torch finds the driver's library, to which it is linked.
    return _evaluate(f"import torch, {ENGINE_LIBRARY}\nprint('\"ok\"')")


def _packages() -> dict[str, str]:
    """Return the version of every installed package, sorted by name."""
    versions = {}
    for distribution in metadata.distributions():
        name = distribution.name.lower().replace("_", "-")
        versions[name] = distribution.version
    return dict(sorted(versions.items()))


def _output_of(command: list[str]) -> str:
    """Return what a command prints, or why it fails."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if process.returncode == 0:
        return process.stdout.strip()
    return process.stderr.strip()


def _evaluate(code: str) -> Any:
    """Return the JSON that a fresh interpreter prints, or the last line of its error."""
    lines = _output_of([sys.executable, "-c", code]).splitlines()
    if not lines:
        return "no output"
    try:
        return json.loads(lines[-1])
    except ValueError:
        return lines[-1]


if __name__ == "__main__":
    print(json.dumps(look(), indent=1))
