"""A process that has imported what a trainer consists of, and is forked for every run of one.

Importing takes several times as long as the few steps of a test.

    python tests/trainer_host.py DESCRIPTOR

The descriptor is one end of a pair of sockets. Each message there is a `Request` as JSON, with two
descriptors: where the run's output goes, and where its exit code is written. The host ends with
whoever holds the other end.
"""

import dataclasses
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.processes import die_with_parent

LARGEST_REQUEST = 1 << 17
_LARGEST_CODE = 16
NUM_HOSTS = 2
"""Of processes that are forked for runs."""
FORKABLE_THREAD = "jemalloc_bg_thd"
"""Gives memory of pyarrow's back; jemalloc starts it anew in a forked process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run of a script."""

    script: str
    """The file to run; what it imports may lie beside it."""
    arguments: list[str]
    """Its command line."""
    environment: dict[str, str]
    """All of its variables, but for those that tell processes of one run apart."""
    folder: str
    """Where it works."""
    processes: int = 1
    """Number of processes, which find each other as under torch.distributed.run."""
    port: int = 0
    """Where the first of several processes listens for the others."""


class TrainerHost:
    """The other end: starts a host and runs scripts in it."""

    def __init__(self, hash_seed: int) -> None:
        """Start a host.

        Args:
            hash_seed: Decides the order of sets in its runs.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            # With more threads torch would have begun them already, see `_import_everything`.
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests."""
        return self._process.poll() is None

    def run(self, request: Request, seconds: float) -> tuple[int, str]:
        """Run a script to its end; return its exit code and its output.

        Args:
            request: What to run.
            seconds: The longest that it may take.

        Raises:
            TimeoutError: It took longer; the host was ended with it.
            ChildProcessError: It was killed, or the host is gone.
        """
        message = json.dumps(dataclasses.asdict(request)).encode()
        code_from, code_to = os.pipe()
        with tempfile.TemporaryFile() as output, open(code_from, "rb") as code:
            socket.send_fds(self._socket, [message], [output.fileno(), code_to])
            os.close(code_to)
            is_over, _, _ = select.select([code], [], [], seconds)
            if not is_over:
                self._process.kill()
            said = code.read(_LARGEST_CODE) if is_over else b""
            output.seek(0)
            text = output.read().decode(errors="replace")
        if not is_over:
            raise TimeoutError(f"{request.script}: not over after {seconds} s:\n{text[-4000:]}")
        if not said:
            raise ChildProcessError(f"{request.script}: killed:\n{text[-4000:]}")
        return int(said), text


_hosts: dict[int, TrainerHost] = {}
"""By the order that sets have in it."""
_num_runs = itertools.count()


def next_host() -> TrainerHost:
    """Return a host in which sets have another order than in the one of the run before."""
    seed = next(_num_runs) % NUM_HOSTS
    if seed not in _hosts or not _hosts[seed].is_alive:
        _hosts[seed] = TrainerHost(hash_seed=seed)
    return _hosts[seed]


def serve(requests: socket.socket) -> None:
    """Fork for every request until nobody can send one."""
    # Nobody waits for those that have run.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 2)
        if not message:
            return
        output, code_to = descriptors
        if os.fork() == 0:
            die_with_parent(signal.SIGKILL)
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(output, sys.stdout.fileno())
            os.dup2(output, sys.stderr.fileno())
            code = _run_processes(Request(**json.loads(message)))
            os.write(code_to, str(code).encode())
            os._exit(0)
        os.close(output)
        os.close(code_to)


def _run_processes(request: Request) -> int:
    """Run the script in as many processes as it needs; the first failure ends all of them."""
    pids = []
    for rank in range(request.processes):
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL)
            _run_script(request, rank)
        pids.append(pid)
    first_failure = 0
    while pids:
        pid, status = os.wait()
        pids.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and first_failure == 0:
            first_failure = code
            for other in pids:
                os.kill(other, signal.SIGTERM)
    return first_failure


def _run_script(request: Request, rank: int) -> None:
    """Run the script in this process, which ends with it."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    if request.processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(request.processes)
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(request.port)
    _set_num_threads()
    sys.argv = [request.script, *request.arguments]
    # As Python begins a script: its folder first. Lines are read when they are printed.
    sys.path.insert(0, str(Path(request.script).parent))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = 1
    try:
        runpy.run_path(request.script, run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _set_num_threads() -> None:
    """Give torch the threads that it would have had, had it been imported with these variables."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))


def _import_everything() -> None:
    """Import what scripted trainers import; a thread among it would not be there after a fork."""
    import trainer_parts  # noqa: F401

    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    others = [name for name in names if name != FORKABLE_THREAD]
    if len(others) > 1:
        raise RuntimeError(f"threads {others}: a process with threads cannot be forked")


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    _import_everything()
    serve(socket.socket(fileno=int(sys.argv[1])))
