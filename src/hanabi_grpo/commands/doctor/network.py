"""The port: whether the server can listen there."""

import errno
import socket
from collections.abc import Iterator

from hanabi_grpo.commands.doctor.answer import ask_health, port_owner
from hanabi_grpo.commands.doctor.check import Check, fail, ok, warn
from hanabi_grpo.commands.doctor.context import Context


def port_checks(context: Context) -> Iterator[Check]:
    """Tell whether the server can listen on PORT, or who does."""
    settings = context.settings
    host, port = settings.host, settings.port
    try:
        _listen(host, port)
    except OSError as error:
        number, reason = error.errno, error.strerror or str(error)
    else:
        yield ok("port", f"{host}:{port} is free")
        return
    if number not in (errno.EACCES, errno.EADDRINUSE):
        yield fail("port", f"HANABI_HOST={host} PORT={port}: cannot listen there ({reason})", "unset HANABI_HOST")
        return
    free = _listen(host, 0)
    move = f"export PORT={free} VLLM_SERVER_PORT={free}"
    if number == errno.EACCES:
        yield fail("port", f"PORT={port}: {reason}; ports below 1024 need rights", move)
        return
    answer = ask_health({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, settings)
    # Never how to end it: it may be somebody's healthy server.
    who, show, serves = "a process of another user", f"sudo ss -ltnp 'sport = :{port}'", False
    if owner := port_owner(port):
        pid, words, serves = owner
        who = f"pid {pid}, {words[:60]}"
        show = f"ps -o user,pid,lstart,args -p {pid}   # whose it is; Ctrl-C in its terminal ends it in order"
    # It listens before its engine has started, and answers after that.
    if not answer.is_ours and not serves:
        yield fail("port", f"{host}:{port} is held by something else ({who})", f"{move}\n{show}")
    elif context.role == "server":
        yield warn("port", f"{host}:{port}: a rollout server runs there already ({who})", f"{move}\n{show}")
    else:
        yield ok("port", f"{host}:{port}: a rollout server runs there already ({who})")


def _listen(host: str, port: int) -> int:
    """Listen for a moment as the server does it; return the port, which the system chooses for 0."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)
        return int(probe.getsockname()[1])
