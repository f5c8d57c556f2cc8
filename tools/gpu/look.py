"""Call B: what a machine has that the engine needs. The standard library is enough, where nothing
is installed.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

_TORCH = (
    "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, "
    "torch.cuda.is_available()]))"
)
_ENGINE = "import torch, vllm._C; print('\"ok\"')"
_QUERY = [
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total,mig.mode.current",
    "--format=csv,noheader",
]


def look() -> dict[str, Any]:
    """Return compiler, headers, GPUs, room in /dev/shm and on disk, torch, the engine's library,
    and every package.
    """
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    shm = Path("/dev/shm")
    return {
        "python": sys.version.split()[0],
        "gpus": _said(_QUERY).splitlines(),
        "compiler": shutil.which("gcc") or shutil.which("clang"),
        "Python.h": str(header) if header.is_file() else None,
        "nvcc": _said(["nvcc", "--version"]).splitlines()[-1:],
        "shm_bytes": shutil.disk_usage(shm).free if shm.is_dir() else None,
        "disk_bytes": shutil.disk_usage(".").free,
        "torch": _asked(_TORCH),
        "vllm._C": _asked(_ENGINE),
        "packages": dict(
            sorted(
                (one.name.lower().replace("_", "-"), one.version)
                for one in metadata.distributions()
            )
        ),
    }


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return (done.stdout if done.returncode == 0 else done.stderr).strip()


def _asked(code: str) -> Any:
    """Return the JSON that a fresh interpreter prints, or the last line of why it does not."""
    said = _said([sys.executable, "-c", code])
    try:
        return json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        return said.splitlines()[-1] if said else "says nothing"


if __name__ == "__main__":
    print(json.dumps(look(), indent=1))
