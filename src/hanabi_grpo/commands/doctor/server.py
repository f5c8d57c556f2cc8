"""The rollout server that is running, against these settings. Nothing is changed on it: no session is opened."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx

from hanabi_grpo.client.http_bounds import bounded_client
from hanabi_grpo.client.rollout_client import each_server, server_name, server_url
from hanabi_grpo.commands.console import server_command
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, read_chat
from hanabi_grpo.commands.doctor.processes import port_owner, rollout_servers
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.handshake import STARTING, tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import is_run
from hanabi_grpo.runs.wire import PROTOCOL
from hanabi_grpo.settings import Settings

_CLAIMS = {
    "chat_hash": "the chat format differs (another tokenizer, or HANABI_THINKING)",
    "tokenizer_hash": "the tokenizer differs (copy the tokenizer files of one side's MODEL)",
}
_LIMIT = 3.0
"""Seconds of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from an address."""

    status: int = 0
    """HTTP status; 0 when there was no answer."""
    problem: str = ""
    """Why there was none."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The answer's JSON object; empty for any other content."""

    @property
    def is_ours(self) -> bool:
        """True when a rollout server of this project answers, if only that it starts or refuses the key."""
        wrong_key = self.status in (401, 403) and "HANABI_API_KEY" in str(self.body.get("detail"))
        return "instance_id" in self.body or wrong_key or self.is_starting

    @property
    def is_starting(self) -> bool:
        """True when a rollout server answers that its engine is not up yet."""
        return self.body.get("status") == STARTING


def ask(url: str, settings: Settings) -> Answer:
    """Send one GET with the key and a time limit."""
    headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
    try:
        with bounded_client(headers=headers, timeout=_LIMIT) as client:
            answer = client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Answer(problem=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    try:
        body = answer.json()
    except ValueError:
        body = None
    return Answer(status=answer.status_code, body=body if isinstance(body, dict) else {})


def ask_health(host: str, port: int, settings: Settings) -> Answer:
    """Ask an address how it is."""
    return ask(f"http://{f'[{host}]' if ':' in host else host}:{port}/health/", settings)


def is_local(host: str) -> bool:
    """Tell whether a host name is this machine by its loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def server_checks(context: Context) -> Iterator[Check]:
    """Tell whether the trainer's server answers, and whether it fits these settings; of several, each of them."""
    for one in each_server(context.settings):
        yield from _server_checks(replace(context, loaded=replace(context.loaded, settings=one)))


def _server_checks(context: Context) -> Iterator[Check]:
    settings, answer = context.settings, context.health
    host, port = settings.vllm_server_host, settings.vllm_server_port
    where, start = server_name(settings), server_command(context.loaded)
    if not answer.status:
        if answer.problem.startswith("ConnectError") and is_local(host):
            yield skip("server", f"none runs at {where} yet; the trainer waits for it", start)
        elif is_local(host) and (owner := port_owner(port)) and owner.pid in {found.pid for found in rollout_servers()}:
            yield skip("server", f"{where}: pid {owner.pid} is starting its engine; the trainer waits for it")
        else:
            yield warn("server", f"{where} cannot be reached ({answer.problem})", f"ping -c 1 {host}\n{start}")
    elif answer.status == 403 and answer.is_ours:
        yield fail("server", f"{where} answers 403: {answer.body['detail']}", "export VLLM_SERVER_HOST=127.0.0.1")
    elif answer.status == 401 and answer.is_ours:
        way = "export HANABI_API_KEY=…   # the value of the server's terminal"
        yield fail("server", f"{where} refuses this key ({answer.status})", way)
    elif not answer.is_ours:
        way = f"export PORT={port + 1} VLLM_SERVER_PORT={port + 1}\n{start}"
        yield fail("server", f"{where} answers {answer.status}, but not as a rollout server of this project", way)
    elif answer.is_starting:
        yield skip("server", f"{where} is starting; the trainer waits for it")
    elif answer.status != 200:
        yield fail("server", f"{where} answers {answer.status}: {answer.body.get('status')}", start)
    else:
        yield from _fits(context, where)


def _fits(context: Context, where: str) -> Iterator[Check]:
    settings = context.settings
    identity = ask(f"{server_url(settings)}/identity/", settings).body
    if "instance_id" not in identity:
        finding = f"{where} is healthy but does not say what it is; it may be of another version of this project"
        yield fail("server", finding, f"{server_command(context.loaded)}   # after Ctrl-C in that terminal")
        return
    differing = list(_differences(context, identity))
    session = f", working for run {identity['run']}" if identity.get("run") else ""
    taken = bool(identity.get("session_alive")) and not _is_own_run(context, str(identity["run"]))
    port = settings.vllm_server_port + 1
    beside = f"export PORT={port} VLLM_SERVER_PORT={port}   # a second server; leave the first to its trainer\n"
    if differing:
        finding = f"{where} does not fit: {'; '.join(differing)}{session}"
        start = server_command(context.loaded)
        yield fail("server", finding, beside + start if taken else f"{start}   # after Ctrl-C in that terminal")
    elif taken:
        finding = (
            f"{where} fits, but it works for run {identity['run']}, whose trainer is alive: another is answered 409"
        )
        again = ".venv/bin/hanabi-grpo doctor --role trainer   # when that trainer is done"
        yield (fail if context.role == "trainer" else warn)("server", finding, f"{beside}{again}")
    else:
        what = f"instance {identity.get('instance_id')}, {identity.get('model')}, {identity.get('dtype')}"
        yield ok("server", f"{where} fits ({what}{session})")
    length = identity.get("max_model_len")
    if length and length != settings.max_model_len:
        finding = f"HANABI_MAX_MODEL_LEN is {length} there and {settings.max_model_len} here"
        yield warn("server length", finding, f"export HANABI_MAX_MODEL_LEN={length}")


def _is_own_run(context: Context, run: str) -> bool:
    """Tell whether a session is of the run that RESUME goes on with: the server lets its successor in."""
    try:
        resume = plan_resume(context.settings)
    except HanabiGrpoError:
        return False  # the check of the run folder says so
    return resume is not None and not resume.fork and is_run(resume.run_folder, run)


def _differences(context: Context, identity: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs; a field that the server does not tell is not compared."""
    settings, folder = context.settings, context.model_folder
    if identity.get("protocol", PROTOCOL) != PROTOCOL:
        yield f"it speaks protocol {identity['protocol']}, this checkout {PROTOCOL}"
    if identity.get("dtype", settings.dtype) != settings.dtype:
        yield f"HANABI_DTYPE is {identity['dtype']} there and {settings.dtype} here"
    if identity.get("max_lora_rank", settings.lora_rank) < settings.lora_rank:
        yield f"LORA_RANK is {identity['max_lora_rank']} there and {settings.lora_rank} here"
    if identity.get("max_players", settings.players) < settings.players:
        yield f"HANABI_PLAYERS is {identity['max_players']} there and {settings.players} here"
    if folder is None:
        return
    if "model_fingerprint" in identity and identity["model_fingerprint"] != model_fingerprint(folder):
        yield f"MODEL is {identity.get('model')} there, and its weights are not those of {settings.model}"
        return
    claims = {key: identity[key] for key in ("chat_hash", "tokenizer_hash") if identity.get(key)}
    # The quick reading is nearly always the same; only the slow one, which both processes use, counts as a difference.
    for key in _different_claims(folder, settings, claims) and _different_claims(
        folder, settings, claims, automatic=True
    ):
        yield _CLAIMS[key]


def _different_claims(
    folder: Path, settings: Settings, claims: Mapping[str, str], *, automatic: bool = False
) -> list[str]:
    try:
        chat = read_chat(folder, settings.thinking, automatic=automatic)
    except SettingsError:
        return []  # the check of the chat template says so
    ours = {"chat_hash": chat.hash, "tokenizer_hash": tokenizer_hash(chat.tokenizer)}
    return [key for key, claim in claims.items() if claim != ours[key]]
