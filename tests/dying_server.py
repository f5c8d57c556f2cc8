"""A rollout server that dies on request: `python dying_server.py PORT FOLDER`.

tests/unit/test_server_restart.py starts it. The engine is dead once FOLDER holds the file "die",
which it removes. Each serving process appends one line of JSON to FOLDER/images. It has an engine
core with two workers, which nothing ties to it.

Environment variables:
    CORE: with "dead" the engine core is dead before the server notices.
    HANG: where it is set, the server's clean-up does not end.
    ALLOWED: number of restarts, 3 by default.
    HEALTHY: seconds after which a server counts as healthy, 600 by default.

Where FOLDER holds the file "fail", the second serving process cannot start.
"""

import asyncio
import ctypes
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

_NUM_WORKERS = 2
_CORE = "for worker in 1 2; do sleep 100 >&- 2>&- & echo $!; done; wait"
"""An engine core that prints the process numbers of its two workers."""
_PR_GET_PDEATHSIG = 2
_HANG_SECONDS = 600


class _Engine:
    def __init__(self, folder: Path, core: "subprocess.Popen[str]") -> None:
        self.folder = folder
        self.core = core
        self.dead = False

    @property
    def is_dead(self) -> bool:
        request = self.folder / "die"
        if request.exists():
            request.unlink()
            self.dead = True
            if os.environ.get("CORE") == "dead":
                self.core.kill()
                self.core.wait()
        return self.dead


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
    # From here on this is a serving process.
    signal.signal(signal.SIGTERM, _end)
    images = folder / "images"
    earlier = _read_images(images)
    failure = folder / "fail"
    if len(earlier) == 1 and failure.exists():
        failure.unlink()
        raise RuntimeError("the memory of the dead one is not free yet")
    os.environ["SET_BY_A_LIBRARY"] = str(len(earlier))
    core = subprocess.Popen(["bash", "-c", _CORE], stdout=subprocess.PIPE, text=True)
    image = _describe_process(core, earlier)
    with images.open("a") as file:
        file.write(json.dumps(image) + "\n")
    if asyncio.run(_serve(_Engine(folder, core), listener, str(image["instance"]))):
        raise SystemExit(EXIT_CODE)


def _read_images(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _describe_process(
    core: "subprocess.Popen[str]", earlier: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what the tests want to know of this serving process and of those before it."""
    assert core.stdout is not None
    family = [core.pid]
    for _ in range(_NUM_WORKERS):
        family.append(int(core.stdout.readline()))
    left = []
    for image in earlier:
        for pid in (image["pid"], *image["family"]):
            if _is_alive(pid):
                left.append(pid)
    death_signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(death_signal), 0, 0, 0)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return {
        "pid": os.getpid(),
        "instance": uuid.uuid4().hex,
        "library": os.environ["SET_BY_A_LIBRARY"],
        "family": family,
        "left": left,
        "deathsig": death_signal.value,
        "files": len(os.listdir("/proc/self/fd")),
        "blocked": sorted(int(signum) for signum in blocked),
    }


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _serve(engine: _Engine, listener: socket.socket, instance: str) -> bool:
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
            time.sleep(_HANG_SECONDS)


if __name__ == "__main__":
    main()
