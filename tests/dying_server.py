"""A rollout server whose engine dies on request: `python dying_server.py PORT FOLDER`, see test_server_restart.py.

The engine is dead once FOLDER holds the file "die", which it removes. Each process image appends one line of JSON to
FOLDER/images: what of the process survived. With CORE=hangs or CORE=dead there is
an engine core with two workers, and at the engine's death the core is one or the other.
"""

import asyncio
import ctypes
import itertools
import json
import multiprocessing
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
from hanabi_grpo.server.limits import Limits
from hanabi_grpo.server.main import _listen
from hanabi_grpo.server.restart import COUNT_VARIABLE, Restarts, mark_children, reap_children, restart_at_latest
from hanabi_grpo.server.serving import serve_until_dead

_CORE = "for worker in 1 2; do sleep 100 >&- 2>&- & echo $!; done; wait"
"""An engine core with two workers, which nothing ties to it."""


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
    allowed, healthy = int(os.environ.get("ALLOWED", "3")), float(os.environ.get("HEALTHY", "600"))
    set_up_logging()
    restarts = Restarts(allowed=allowed, healthy_seconds=healthy)
    reap_children()
    mark_children()
    listener = _listen("127.0.0.1", port)
    die_with_parent(signal.SIGTERM)
    os.environ["SET_BY_A_LIBRARY"] = "yes"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # What an engine leaves behind: a child that ignores the end, and a file that a new image would inherit.
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    core = subprocess.Popen(["bash", "-c", _CORE if "CORE" in os.environ else ":"], stdout=subprocess.PIPE, text=True)
    file = folder / "images"
    earlier = [json.loads(line)["workers"] for line in file.read_text().splitlines()] if file.exists() else []
    leak = os.open(folder, os.O_RDONLY)
    os.set_inheritable(leak, True)
    deathsig = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(deathsig), 0, 0, 0)
    image = {
        "pid": os.getpid(),
        "instance": uuid.uuid4().hex,
        "count": os.environ.get(COUNT_VARIABLE),
        "library": "SET_BY_A_LIBRARY" in restarts.environment,
        "child": child.pid,
        "workers": [int(line) for line in itertools.islice(core.stdout or (), 2)],
        "left": [pid for workers in earlier for pid in workers if _is_alive(pid)],
        "deathsig": deathsig.value,
        "files": len(os.listdir("/proc/self/fd")),
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "arguments": sys.argv[1:],
    }
    with file.open("a") as images:
        images.write(json.dumps(image) + "\n")
    died = asyncio.run(_run(_Engine(folder, core), listener, restarts, image["instance"]))
    if died:
        restarts.after_engine_death()


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _run(engine: _Engine, listener: socket.socket, restarts: Restarts, instance: str) -> bool:
    async def identity(_: Request) -> JSONResponse:
        return JSONResponse({"instance_id": instance})

    try:
        return await serve_until_dead(
            Starlette(routes=[Route("/identity/", identity)]),
            listener,
            lambda: engine.is_dead,
            limits=Limits(),
            on_death=lambda: restart_at_latest(restarts, float(os.environ.get("AT_LATEST", "60"))),
            poll=0.05,
            graceful_seconds=1,
        )
    finally:
        if engine.dead and "HANG" in os.environ:
            time.sleep(600)


if __name__ == "__main__":
    main()
