"""Processes that start sooner, wait for a debugger, and end when the one that started them ends.

The last also after kill -9, on Linux.
"""

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import NoReturn

from hanabi_grpo.errors import SettingsError

logger = logging.getLogger(__name__)

DEBUG_PORT = 5678
"""Where a process waits for a debugger; the one that editors try."""
_BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Libraries whose builds fit one build of torch only."""
_CPU_BUILD = "cpu"
"""What stands behind the "+" of the version of a build for CPUs."""
_PR_SET_PDEATHSIG = 1
"""Number of the option in Linux's `prctl`."""
_PR_SET_CHILD_SUBREAPER = 36
"""Number of the option in Linux's `prctl`."""


def hide_misfits() -> None:
    """Hide libraries that are built for CUDA beside a torch that is built for CPUs.

    An index that has CUDA builds only installs them so. Their import fails, and takes that of
    transformers down; text models need none of them.
    """
    for name in _BUILT_FOR_TORCH:
        if name in sys.modules:
            continue
        try:
            torch_build = metadata.version("torch").partition("+")[2]
            build = metadata.version(name).partition("+")[2]
        except metadata.PackageNotFoundError:
            continue
        if torch_build == _CPU_BUILD != build:
            # As for a package that is not installed: imports fail and `find_spec` finds nothing.
            sys.modules[name] = None  # type: ignore[assignment]


def die_with_parent(signum: signal.Signals) -> None:
    """Ask the kernel to signal this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, int(signum))


def leave(exit_code: int) -> NoReturn:
    """End this process without taking the interpreter apart.

    Threads of libraries still run then: gloo's, for one, outlive `destroy_process_group` wherever a
    library keeps a group, and a thread that finds no interpreter aborts a process that has done all
    its work. What is registered with `atexit` runs, and everything printed is written.

    Args:
        exit_code: The exit code of the process.
    """
    # As multiprocessing's children end; there is no public name for the first of these calls.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def raise_descriptor_limit() -> None:
    """Allow this process as many open files and connections as it may allow itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def adopt_orphans() -> None:
    """Ask the kernel to make this process the parent of its descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import much without Python's garbage collector.

    It takes a quarter of the time and finds nothing. What is there at the end stays out of later
    collections too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # When the process ends everything is collected as always, since some libraries complain of
        # objects that are still there. Registered once, however often this ran.
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def wait_for_debugger(terminal: str, port: int = DEBUG_PORT) -> None:
    """Wait until a debugger is attached to this process (HANABI_DEBUG).

    Args:
        terminal: "server" or "trainer", for messages.
        port: Port of 127.0.0.1.

    Raises:
        SettingsError: debugpy is not installed, or the port is taken.
    """
    given = f"HANABI_DEBUG={terminal}"
    try:
        import debugpy
    except ImportError as error:
        raise SettingsError(
            f"{given}: debugpy is not installed; it belongs to the developers' packages, which "
            "bash tools/setup.sh installs. Or unset HANABI_DEBUG."
        ) from error
    try:
        debugpy.listen(("127.0.0.1", port))
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            f"{given}: no debugger can be waited for at 127.0.0.1:{port} ({error}); end what "
            "listens there, or unset HANABI_DEBUG."
        ) from error
    logger.info("%s: waiting for a debugger at 127.0.0.1:%d", given, port)
    debugpy.wait_for_client()
    logger.info("%s: a debugger is attached", given)
