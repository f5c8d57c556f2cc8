"""Ports: whether the server can listen, and whether the trainer looks there."""

import errno
import socket
from collections.abc import Iterator

from hanabi_grpo.client.rollout_client import each_server
from hanabi_grpo.commands.doctor.answer import ask_health, is_local, port_owner, rollout_servers
from hanabi_grpo.commands.doctor.check import Check, fail, ok, warn
from hanabi_grpo.commands.doctor.context import Context


def port_checks(context: Context) -> Iterator[Check]:
    """Tell whether the server can listen on PORT, or who does."""
    settings = context.settings
    host, port = settings.host, settings.port
    problem = _bind(host, port)
    if problem is None:
        yield ok("port", f"{host}:{port} is free")
        return
    number, reason = problem
    if number not in (errno.EACCES, errno.EADDRINUSE):
        yield fail("port", f"HANABI_HOST={host} PORT={port}: cannot listen there ({reason})", "unset HANABI_HOST")
        return
    free = _free_port(host)
    move = f"export PORT={free} VLLM_SERVER_PORT={free}"
    if number == errno.EACCES:
        yield fail("port", f"PORT={port}: {reason}; ports below 1024 need rights", move)
        return
    answer = ask_health({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, settings)
    owner = port_owner(port)
    who = f"pid {owner.pid}, {' '.join(owner.cmdline())[:60]}" if owner else "a process of another user"
    # Never how to end it: it may be somebody's healthy server.
    show = f"sudo ss -ltnp 'sport = :{port}'"
    if owner:
        show = f"ps -o user,pid,lstart,args -p {owner.pid}   # whose it is; Ctrl-C in its terminal ends it in order"
    # It listens before its engine has started, and answers after that.
    if not answer.is_ours and owner not in rollout_servers():
        yield fail("port", f"{host}:{port} is held by something else ({who})", f"{move}\n{show}")
    elif context.role == "server":
        yield warn("port", f"{host}:{port}: a rollout server runs there already ({who})", f"{move}\n{show}")
    else:
        yield ok("port", f"{host}:{port}: a rollout server runs there already ({who})")


def port_agreement_checks(context: Context) -> Iterator[Check]:
    """Tell whether the trainer would look for the server where it listens."""
    settings = context.settings
    ports = [one.vllm_server_port for one in each_server(settings) if is_local(one.vllm_server_host)]
    if not ports:
        yield ok("ports agree", f"the trainer's server is elsewhere: {settings.vllm_server_host}")
    elif len(ports) > 1:
        yield ok("ports agree", f"several servers on this machine, each with a PORT of its own: {ports}")
    elif settings.port != ports[0]:
        named = ports[0] != settings.vllm_server_port
        where = f"VLLM_SERVER_HOST={settings.vllm_server_host}" if named else f"VLLM_SERVER_PORT={ports[0]}"
        finding = f"PORT={settings.port}, but {where}: the trainer would wait"
        way = f"export PORT={ports[0]}" if named else f"export VLLM_SERVER_PORT={settings.port}"
        yield warn("ports agree", f"{finding} at a port where no server of these settings listens", way)
    else:
        yield ok("ports agree", f"PORT and VLLM_SERVER_PORT are {settings.port}")


def _bind(host: str, port: int) -> tuple[int, str] | None:
    try:
        # As the server does it.
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return error.errno or 0, error.strerror or str(error)
    return None


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
