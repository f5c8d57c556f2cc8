"""Processes that start faster, wait for a debugger, and end when their parent process ends.

On Linux they end even if the parent is killed with kill -9.
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
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn

from hanabi_grpo.errors import SettingsError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

logger = logging.getLogger(__name__)

DEBUG_PORT = 5678
"""Port where a process waits for a debugger; the default of editors."""
_BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Libraries whose builds fit only one build of torch."""
_CPU_BUILD = "cpu"
"""The version suffix after "+" of a build for CPUs."""
PARENT_VARIABLE = "_HANABI_GRPO_PARENT"
"""Environment variable with the process id of the parent, see `die_with_starter`."""
_PR_SET_PDEATHSIG = 1
"""Number of the option in Linux's `prctl`."""
_PR_SET_CHILD_SUBREAPER = 36
"""Number of the option in Linux's `prctl`."""


def hide_misfits() -> None:
    """Hide libraries that are built for CUDA if torch is built for CPUs.

    A package index with only CUDA builds leads to this combination. Importing these libraries
    fails, and so does importing transformers then; text models do not need them.
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
            # As if the package were not installed: imports fail and `find_spec` finds nothing.
            sys.modules[name] = None  # type: ignore[assignment]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def die_with_parent(signum: signal.Signals) -> None:
    """Ask the kernel to signal this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, int(signum))


def die_with_starter(signum: signal.Signals) -> None:
    """Ask for a signal as `die_with_parent` does, and end if that parent is already gone.

    A server calls this seconds after its start, when its parent may have been killed. Only the
    parent can say who it was, in the environment (`PARENT_VARIABLE`).

    Raises:
        SystemExit: The parent has ended.
    """
    die_with_parent(signum)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None and parent != str(os.getppid()):
        sys.exit(f"process {parent}, which started this one, has ended; this one ends too")


@contextlib.contextmanager
def worker_pool(
    num_workers: int, prepare: Callable[..., None] | None = None, *arguments: Any
) -> Iterator["ProcessPoolExecutor"]:
    """Yield a pool of spawned processes.

    An error or an interrupt kills them, because their work may take minutes. When the block is
    left, all of them have ended. They also end if this process is killed. Ctrl-C in a terminal,
    which reaches every process, is left to this one.

    Args:
        num_workers: Number of processes.
        prepare: Called once in each of them; None: nothing.
        arguments: Arguments of `prepare`.
    """
    # Imported here, because few commands need them.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    others = active_children()
    with ProcessPoolExecutor(
        num_workers,
        mp_context=get_context("spawn"),
        initializer=_prepare_worker,
        initargs=(prepare, arguments),
    ) as pool:
        try:
            yield pool
        except BaseException:
            # Killed before the pool shuts down, which then waits until they have ended.
            for worker in active_children():
                if worker not in others:
                    worker.kill()
            raise


def _prepare_worker(prepare: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    die_with_parent(signal.SIGKILL)
    # Both may reach the whole process group; the parent ends its workers when it is ready.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if prepare is not None:
        prepare(*arguments)


def leave(exit_code: int) -> NoReturn:
    """End this process without finalizing the interpreter.

    Threads of libraries may still be running: gloo's, for example, outlive `destroy_process_group`
    if a library keeps a group. A thread that finds no interpreter aborts the process, although it
    has done all its work. Functions registered with `atexit` run, and printed output is flushed.

    Args:
        exit_code: The exit code of the process.
    """
    # Children of multiprocessing end this way; the first of these calls has no public name.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def raise_descriptor_limit() -> None:
    """Raise this process's limit on open files and connections to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def adopt_orphans() -> None:
    """Ask the kernel to make this process the parent of its descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Run many imports without Python's garbage collector.

    The collector takes a quarter of the time and finds nothing. Objects that exist at the end are
    excluded from later collections too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # When the process ends, everything is collected as usual, because some libraries complain
        # about objects that are left. Registered once, however often this ran.
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
            f"{given}: debugpy is not installed; it is one of the developers' packages, which "
            "bash tools/setup.sh installs. Or unset HANABI_DEBUG."
        ) from error
    try:
        debugpy.listen(("127.0.0.1", port))
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            f"{given}: cannot wait for a debugger at 127.0.0.1:{port} ({error}); stop the process "
            "that listens there, or unset HANABI_DEBUG."
        ) from error
    logger.info("%s: waiting for a debugger at 127.0.0.1:%d", given, port)
    debugpy.wait_for_client()
    logger.info("%s: a debugger is attached", given)
