"""Checks of ports and of running servers; none of them opens a session on a server."""

import asyncio
import errno
import shlex
from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.client.fleet import server_name
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import NotReady, look_once
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import LOCAL, Context, is_rollout_server
from hanabi_grpo.errors import PartnerError, ServerError
from hanabi_grpo.runs.run_folder import is_run
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.main import listen
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.shell import server_command

_REACHED_BY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address at which this machine reaches a server that listens on all addresses."""
_MAX_MODELS = 10
"""Maximum number of models of a URL in a finding."""


def port_checks(context: Context) -> Check:
    """Check that the server can listen on PORT, or report what listens there."""
    host = context.settings.host
    port = context.settings.port
    try:
        listen(host, port).close()
        return ok("port", f"{host}:{port} is free")
    except ServerError as error:
        cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno != errno.EADDRINUSE:
        reason = cause.strerror or cause
        finding = f"HANABI_HOST={host} PORT={port}: cannot listen there ({reason})"
        return fail("port", finding, "unset HANABI_HOST PORT")
    # No command to stop the listener: it may be somebody's healthy server.
    free_port = _find_free_port(host)
    remedy = (
        f"export PORT={free_port} VLLM_SERVER_PORT={free_port}\n"
        f"ss -ltnp 'sport = :{port}'   # shows which process it is"
    )
    address = {"vllm_server_host": _REACHED_BY.get(host, host), "vllm_server_port": port}
    health = look_once(context.settings.model_copy(update=address))
    if not is_rollout_server(health):
        return fail("port", f"{host}:{port} is used by another program", remedy)
    finding = f"{host}:{port}: a rollout server is already running there"
    if context.role == "server":
        return warn("port", finding, remedy)
    return ok("port", finding)


def _find_free_port(host: str) -> int:
    with listen(host, 0) as probe:
        return int(probe.getsockname()[1])


def server_checks(context: Context) -> Iterator[Check]:
    """Check that each of the trainer's servers answers and has no other trainer."""
    for settings, health in context.healths:
        start = server_command(replace(context.loaded, settings=settings))
        if isinstance(health, dict):
            yield _check_identity(context, settings, start)
        elif isinstance(health, ServerError):
            yield _explain_refusal(health)
        else:
            yield _explain_not_ready(settings, health, start)


def _explain_refusal(error: ServerError) -> Check:
    """Report what to do about a server that refuses this client."""
    remedy = "export VLLM_SERVER_HOST=127.0.0.1"
    if "(401)" in str(error):
        remedy = "export HANABI_API_KEY=…   # the value in the server's terminal"
    return fail("server", str(error), remedy)


def _explain_not_ready(settings: Settings, health: NotReady, start: str) -> Check:
    """Report what to do about a server that is not healthy; `start` is the command to start it."""
    host = settings.vllm_server_host
    name = server_name(settings)
    if health.is_there:
        return skip("server", f"{name} {health.reason}; the trainer waits for it")
    if "answers" in health.reason:
        next_port = settings.vllm_server_port + 1
        remedy = f"export PORT={next_port} VLLM_SERVER_PORT={next_port}\n{start}"
        finding = f"{name} is not a usable rollout server: {health.reason}"
        return fail("server", finding, remedy)
    if health.reason.startswith("ConnectError") and host in LOCAL:
        return skip("server", f"no server runs at {name} yet; the trainer waits for it", start)
    finding = f"{name} cannot be reached ({health.reason})"
    return warn("server", finding, f"ping -c 1 {host}\n{start}")


def _check_identity(context: Context, settings: Settings, start: str) -> Check:
    """Check that a healthy server has this version and no other trainer.

    The server checks the trainer's model and rank when a session is opened.
    """
    name = server_name(settings)
    try:
        with RolloutClient.from_settings(settings) as client:
            answer = client.identity()
        identity = ServerIdentity.model_validate(answer)
    except (ServerError, ValidationError):
        finding = (
            f"{name} is healthy but does not identify itself; it may run another version of this "
            "project"
        )
        return fail("server", finding, f"{start}   # after Ctrl-C in that terminal")
    run = answer.get("run")
    if answer.get("session_alive") and not _continues_run(context, str(run)):
        port = settings.vllm_server_port + 1
        remedy = (
            f"export PORT={port} VLLM_SERVER_PORT={port}   # a second server; leave the first to "
            "its trainer"
        )
        finding = (
            f"{name} serves run {run}, whose trainer is alive; a second trainer is refused (409)"
        )
        result = fail if context.role == "trainer" else warn
        return result("server", finding, remedy)
    facts = f"instance {identity.instance_id}, {identity.model}, {identity.dtype}"
    return ok("server", f"{name} answers ({facts})")


def _continues_run(context: Context, run: str) -> bool:
    """Tell whether RESUME continues this run; the server accepts its resumed trainer."""
    resume, _ = context.planned
    if resume is None or resume.needs_fresh_folder:
        return False
    return is_run(resume.run_folder, run)


def partner_url_checks(context: Context) -> Iterator[Check]:
    """Ask each of HANABI_PARTNER_URLS for its models, which costs no tokens."""
    partners = UrlPartners(context.settings)
    judge = context.settings.judge
    # The trainer's terminal does not need the judge's URL.
    if judge and judge not in partners.by_spec and context.role != "trainer":
        known = ", ".join(partners.by_spec) or "none"
        finding = f"HANABI_JUDGE={judge} is not among HANABI_PARTNER_URLS, which has {known}"
        name = judge.removeprefix("url:")
        yield fail("partner urls", finding, _with_partner_url(context, f"{name}=URL#MODEL"))
    for spec, partner in partners.by_spec.items():
        try:
            models = asyncio.run(partners.list_models(spec))
        except PartnerError as error:
            remedy = f"curl {shlex.quote(f'{partner.base}/models')}"
            yield fail("partner urls", f"{spec}: {error}", remedy)
            continue
        if partner.model in models:
            yield ok("partner urls", f"{spec}: {partner.base} has {partner.model}")
            continue
        listed = ", ".join(models[:_MAX_MODELS]) or "nothing"
        finding = f"{spec}: {partner.base} lists {listed}, but not {partner.model}"
        remedy = _with_partner_url(context, f"{partner.name}={partner.base}#MODEL")
        yield warn("partner urls", finding, remedy)


def _with_partner_url(context: Context, entry: str) -> str:
    """Return the line that sets HANABI_PARTNER_URLS with an entry added or replaced.

    Args:
        context: What is checked; its other URLs are kept.
        entry: NAME=URL#MODEL.
    """
    name, _, _ = entry.partition("=")
    entries = {each.partition("=")[0]: each for each in context.settings.partner_urls}
    urls = ",".join({**entries, name: entry}.values())
    return f"export HANABI_PARTNER_URLS={shlex.quote(urls)}"
