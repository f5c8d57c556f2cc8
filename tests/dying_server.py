"""A rollout server that dies on request: `python dying_server.py PORT FOLDER`, see
test_server_restart.py.

The engine is dead once FOLDER holds the file "die", which it removes. Each serving process appends
one line of JSON to FOLDER/images. It has an engine core with two workers, which nothing ties to it;
with CORE=dead the core is dead before the server notices. HANG: its clean-up does not end. FAIL:
the second one cannot start."""

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


class _Engine:
    def __init__(self, folder: Path, core: "subprocess.Popen[str]") -> None:
        self.folder, self.core = folder, core
        self.dead = False

    @property
    def is_dead(self) -> bool:
        if (self.folder / "die").exists():
            (self.folder / "die").unlink()
            self.dead = True
            if os.environ.get("CORE") == "dead":
                self.core.kill()
                self.core.wait()
        return self.dead


def main() -> None:
    """Serve until a signal, or until the restarts are used up."""
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    set_up_logging()
    listener = listen("127.0.0.1", port)
    die_with_parent(signal.SIGTERM)
    fork_and_supervise(
        allowed=int(os.environ.get("ALLOWED", "3")),
        healthy_seconds=float(os.environ.get("HEALTHY", 600)),
    )
    signal.signal(signal.SIGTERM, _end)
    file = folder / "images"
    earlier = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if len(earlier) == 1 and (folder / "fail").exists():
        (folder / "fail").unlink()
        raise RuntimeError("the memory of the dead one is not free yet")
    os.environ["SET_BY_A_LIBRARY"] = str(len(earlier))
    core = subprocess.Popen(["bash", "-c", _CORE], stdout=subprocess.PIPE, text=True)
    deathsig = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(deathsig), 0, 0, 0)
    image = {
        "pid": os.getpid(),
        "instance": uuid.uuid4().hex,
        "library": os.environ["SET_BY_A_LIBRARY"],
        "family": [core.pid, *(int(line) for line in itertools.islice(core.stdout or (), 2))],
        "left": [pid for one in earlier for pid in (one["pid"], *one["family"]) if _is_alive(pid)],
        "deathsig": deathsig.value,
        "files": len(os.listdir("/proc/self/fd")),
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    }
    with file.open("a") as images:
        images.write(json.dumps(image) + "\n")
    if asyncio.run(_run(_Engine(folder, core), listener, str(image["instance"]))):
        raise SystemExit(EXIT_CODE)


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
        if engine.dead and "HANG" in os.environ:
            time.sleep(600)


if __name__ == "__main__":
    main()
