"""Ports, proxies, and what earlier servers left behind."""

import errno
import socket
from collections.abc import Iterator

from hanabi_grpo.client.rollout_client import each_server
from hanabi_grpo.commands.doctor.check import Check, fail, ok, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.processes import Process, orphaned_engines, port_owner, rollout_servers
from hanabi_grpo.commands.doctor.server import ask_health, is_local
from hanabi_grpo.server.adapter_folders import LOCK, PREFIX, adapter_home, leftovers

_PROXIES = ("HTTP_PROXY", "ALL_PROXY")


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
    else:
        local = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
        answer = ask_health(local, port, settings)
        owner = port_owner(port)
        who = f"pid {owner.pid}, {owner.command[:60]}" if owner else "a process of another user"
        # Never how to end it: it may be somebody's healthy server.
        show = _whose(owner) if owner else f"sudo ss -ltnp 'sport = :{port}'"
        # It listens before its engine has started, and answers after that.
        starting = owner is not None and owner.pid in {server.pid for server in rollout_servers()}
        if not answer.is_ours and not starting:
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


def proxy_checks(context: Context) -> Iterator[Check]:
    """Tell whether a proxy of this shell would catch requests to the server."""
    environ = context.environ
    found = [name for name in _PROXIES for name in (name, name.lower()) if environ.get(name)]
    if not found:
        yield ok("proxy", "none set")
        return
    hosts = list(dict.fromkeys(one.vllm_server_host for one in each_server(context.settings)))
    exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    lacking = [host for host in hosts if not _is_exempt(host, exempt)]
    if not lacking:
        yield ok("proxy", f"{', '.join(found)} set, NO_PROXY covers {', '.join(hosts)}")
        return
    host = ",".join(lacking)
    name = "no_proxy" if environ.get("no_proxy") else "NO_PROXY"
    finding = f"{', '.join(found)} set and {name} lacks {host}: serve, train and evaluate ignore proxies, but curl and "
    finding += "other programs of this shell would send requests for the server there"
    yield warn("proxy", finding, f'export {name}="{f"${name}," if exempt else ""}{host},localhost"')


def leftover_checks(context: Context) -> Iterator[Check]:
    """List rollout servers of this machine and what killed ones left."""
    expected = port_owner(context.settings.port)
    others = [server for server in rollout_servers() if expected is None or server.pid != expected.pid]
    for server in others:
        what = f"another rollout server runs: pid {server.pid}, {server.command[-60:]}"
        yield warn("leftovers", what, _whose(server))
    orphans = orphaned_engines()
    if orphans:
        pids = " ".join(str(process.pid) for process in orphans)
        yield warn("leftovers", f"engine processes without their server: pid {pids}", f"kill {pids}")
    home = adapter_home()
    stale = leftovers(home, PREFIX)
    if stale:
        size = sum(file.stat().st_size for folder in stale for file in folder.rglob("*") if file.is_file())
        finding = f"{len(stale)} adapter folder(s) of servers that were killed ({size / 1e6:.1f} MB)"
        # The lock is asked again when the command is typed, which may be later.
        remedy = "\n".join(f"flock -n {folder / LOCK} rm -r {folder}" for folder in stale)
        yield warn("leftovers", f"{finding}; the next server removes them", remedy)
    if not (others or orphans or stale):
        yield ok("leftovers", "no other rollout server, nothing left by killed ones")


def _whose(process: Process) -> str:
    return f"ps -o user,pid,lstart,args -p {process.pid}   # whose it is; Ctrl-C in its terminal ends it in order"


def _is_exempt(host: str, exempt: str) -> bool:
    names = [name.strip().lower().removeprefix(".") for name in exempt.split(",") if name.strip()]
    return any(name == "*" or host.lower() == name or host.lower().endswith(f".{name}") for name in names)


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
