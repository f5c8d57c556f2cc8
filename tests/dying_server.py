"""A rollout server that dies on request: `python dying_server.py PORT FOLDER`.

For `test_server_restart.py`. The engine is dead once FOLDER holds the file "die", which it removes.
Each serving process appends one line of JSON to FOLDER/images. It has an engine core with two
workers, which nothing ties to it; with CORE=dead the core is dead before the server notices. HANG:
its clean-up does not end. A file "fail" in FOLDER: the second process cannot start.
"""

import asyncio
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hanabi_grpo.logs import set_up_logging
from hanabi_grpo.processes import die_with_parent
from hanabi_grpo.server.main import EXIT_CODE, _end, fork_and_supervise, listen
from hanabi_grpo.server.serving import serve_until_dead

_CORE = "for worker in 1 2; do sleep 100 >&- 2>&- & echo $!; done; wait"
"""A shell with two children, whose ids it prints."""
_NUM_WORKERS = 2
_PR_GET_PDEATHSIG = 2
"""Option of prctl that asks which signal the parent's death sends."""


class _Engine:
    def __init__(self, folder: Path, core: "subprocess.Popen[str]") -> None:
        self.core = core
        self.was_killed = False
        self._order = folder / "die"

    @property
    def is_dead(self) -> bool:
        if self._order.exists():
            self._order.unlink()
            self.was_killed = True
            if os.environ.get("CORE") == "dead":
                self.core.kill()
                self.core.wait()
        return self.was_killed


def main() -> None:
    """Serve until a signal, or until the restarts are used up."""
    port = int(sys.argv[1])
    folder = Path(sys.argv[2])
    set_up_logging()
    listener = listen("127.0.0.1", port)
    die_with_parent(signal.SIGTERM)
    fork_and_supervise(
        allowed=int(os.environ.get("ALLOWED", "3")),
        healthy_seconds=float(os.environ.get("HEALTHY", 600)),
    )
    signal.signal(signal.SIGTERM, _end)
    file = folder / "images"
    earlier = []
    if file.exists():
        earlier = [json.loads(line) for line in file.read_text().splitlines()]
    failure = folder / "fail"
    if len(earlier) == 1 and failure.exists():
        failure.unlink()
        raise RuntimeError("the memory of the dead one is not free yet")
    os.environ["SET_BY_A_LIBRARY"] = str(len(earlier))
    core = subprocess.Popen(["bash", "-c", _CORE], stdout=subprocess.PIPE, text=True)
    image = describe_process(core, earlier)
    with file.open("a") as images:
        images.write(json.dumps(image) + "\n")
    engine_died = asyncio.run(_run(_Engine(folder, core), listener, image["instance"]))
    if engine_died:
        raise SystemExit(EXIT_CODE)


def describe_process(
    core: "subprocess.Popen[str]", earlier: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what the test wants to know of this serving process.

    Args:
        core: Its engine core.
        earlier: The same of the processes before it.
    """
    workers = [int(line) for line in itertools.islice(core.stdout or (), _NUM_WORKERS)]
    left_behind = []
    for image in earlier:
        for pid in (image["pid"], *image["family"]):
            if _is_alive(pid):
                left_behind.append(pid)
    death_signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(death_signal), 0, 0, 0)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return {
        "pid": os.getpid(),
        "instance": uuid.uuid4().hex,
        "library": os.environ["SET_BY_A_LIBRARY"],
        "family": [core.pid, *workers],
        "left": left_behind,
        "deathsig": death_signal.value,
        "files": len(os.listdir("/proc/self/fd")),
        "blocked": sorted(int(number) for number in blocked),
    }


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _run(engine: _Engine, listener: socket.socket, instance: str) -> bool:
    async def identity(_: Request) -> JSONResponse:
        return JSONResponse({"instance_id": instance})

    try:
        return await serve_until_dead(
            Starlette(routes=[Route("/identity/", identity)]),
            listener,
            lambda: engine.is_dead,
            on_death=lambda: signal.alarm(1),
            poll=0.05,
            graceful_seconds=1,
        )
    finally:
        if engine.was_killed and "HANG" in os.environ:
            time.sleep(600)


if __name__ == "__main__":
    main()
