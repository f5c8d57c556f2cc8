"""Ports and rollout servers: may one listen, does one answer, whose is it. No session is opened on
any.
"""

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.client.fleet import server_name
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import NotReady, look_once
from hanabi_grpo.commands.console import server_command
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import LOCAL, Context, is_ours
from hanabi_grpo.errors import PartnerError, ServerError
from hanabi_grpo.runs.run_folder import is_run
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.main import listen
from hanabi_grpo.settings import Settings


def port_checks(context: Context) -> Check:
    """Tell whether the server can listen on PORT, or who does."""
    host, port = context.settings.host, context.settings.port
    try:
        listen(host, port).close()
        return ok("port", f"{host}:{port} is free")
    except ServerError as error:
        cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno != errno.EADDRINUSE:
        finding = f"HANABI_HOST={host} PORT={port}: cannot listen there ({cause.strerror or cause})"
        return fail("port", finding, "unset HANABI_HOST PORT")
    place = {
        "vllm_server_host": {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host),
        "vllm_server_port": port,
    }
    with listen(host, 0) as probe:
        free = probe.getsockname()[1]
    # Never how to end it: it may be somebody's healthy server.
    ways = f"export PORT={free} VLLM_SERVER_PORT={free}\nss -ltnp 'sport = :{port}'   # whose it is"
    if not is_ours(look_once(context.settings.model_copy(update=place))):
        return fail("port", f"{host}:{port} is held by something else", ways)
    finding = f"{host}:{port}: a rollout server runs there already"
    return warn("port", finding, ways) if context.role == "server" else ok("port", finding)


def server_checks(context: Context) -> Iterator[Check]:
    """Tell whether the trainer's server answers, and whether it is free; of several, each of
    them.
    """
    for one, health in context.healths:
        start = server_command(replace(context.loaded, settings=one))
        if isinstance(health, dict):
            yield from _fits(context, one, start)
        else:
            yield _is_not_ready(one, health, start)


def _is_not_ready(one: Settings, health: NotReady | ServerError, start: str) -> Check:
    host, port, where = one.vllm_server_host, one.vllm_server_port, server_name(one)
    if isinstance(health, ServerError):
        way = "export HANABI_API_KEY=…   # the value of the server's terminal"
        return fail(
            "server",
            str(health),
            way if "(401)" in str(health) else "export VLLM_SERVER_HOST=127.0.0.1",
        )
    if health.is_there:
        return skip("server", f"{where} {health.reason}; the trainer waits for it")
    if "answers" in health.reason:
        way = f"export PORT={port + 1} VLLM_SERVER_PORT={port + 1}\n{start}"
        return fail("server", f"{where} is no server that can be used: {health.reason}", way)
    if health.reason.startswith("ConnectError") and host in LOCAL:
        return skip("server", f"none runs at {where} yet; the trainer waits for it", start)
    return warn(
        "server", f"{where} cannot be reached ({health.reason})", f"ping -c 1 {host}\n{start}"
    )


def _fits(context: Context, one: Settings, start: str) -> Iterator[Check]:
    """Tell whose the server is. Whether it fits the trainer's model and rank, it says when the
    session is opened.
    """
    where = server_name(one)
    try:
        with RolloutClient.from_settings(one) as client:
            identity = client.identity()
        there = ServerIdentity.model_validate(identity)
    except (ServerError, ValidationError):
        finding = (
            f"{where} is healthy but does not say what it is; it may be of another version "
            "of this project"
        )
        yield fail("server", finding, f"{start}   # after Ctrl-C in that terminal")
        return
    run, (resume, _) = identity.get("run"), context.planned
    # The server lets the successor of its own run in.
    own = resume is not None and not resume.fork and is_run(resume.run_folder, str(run))
    if identity.get("session_alive") and not own:
        port = one.vllm_server_port + 1
        beside = (
            f"export PORT={port} VLLM_SERVER_PORT={port}   # a second server; leave the "
            "first to its trainer"
        )
        finding = f"{where} works for run {run}, whose trainer is alive: another is answered 409"
        yield (fail if context.role == "trainer" else warn)("server", finding, beside)
    else:
        yield ok(
            "server",
            f"{where} answers (instance {there.instance_id}, {there.model}, {there.dtype})",
        )


def partner_url_checks(context: Context) -> Iterator[Check]:
    """Ask each of HANABI_PARTNER_URLS which models it has, which costs no tokens."""
    partners = UrlPartners(context.settings)
    for word, one in partners.by_spec.items():
        try:
            names = asyncio.run(partners.list_models(word))
        except PartnerError as error:
            yield fail("partner urls", f"{word}: {error}", f"curl {one.base}/models")
            continue
        if one.model in names:
            yield ok("partner urls", f"{word}: {one.base} has {one.model}")
        else:
            finding = (
                f"{word}: {one.base} lists {', '.join(names[:10]) or 'nothing'}, and not "
                f"{one.model}"
            )
            yield warn(
                "partner urls", finding, f"export HANABI_PARTNER_URLS={one.name}={one.base}#MODEL"
            )
