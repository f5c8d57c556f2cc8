"""The rollout server that is running, against these settings. Nothing is changed on it: no session is opened."""

from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from hanabi_grpo.client.fleet import each_server, server_name, server_url
from hanabi_grpo.commands.console import server_command
from hanabi_grpo.commands.doctor.answer import ask, is_local, port_owner
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, read_chat
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.handshake import PROTOCOL, GameClaim, SessionRequest, game_claims, tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.run_folder import is_run
from hanabi_grpo.server.identity import ServerIdentity, check_fit
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import SHARED_ADAPTER, player_names


def server_checks(context: Context) -> Iterator[Check]:
    """Tell whether the trainer's server answers, and whether it fits these settings; of several, each of them."""
    for one in each_server(context.settings):
        yield from _server_checks(context, one)


def _server_checks(context: Context, one: Settings) -> Iterator[Check]:
    host, port = one.vllm_server_host, one.vllm_server_port
    answer, where = context.health(host, port), server_name(one)
    start = server_command(replace(context.loaded, settings=one))
    if not answer.status:
        owner = port_owner(port) if is_local(host) else None
        if answer.problem.startswith("ConnectError") and is_local(host):
            yield skip("server", f"none runs at {where} yet; the trainer waits for it", start)
        elif owner and owner[2]:
            yield skip("server", f"{where}: pid {owner[0]} is starting its engine; the trainer waits for it")
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
        yield from _fits(context, one, where, start)


def _fits(context: Context, one: Settings, where: str, start: str) -> Iterator[Check]:
    identity = ask(f"{server_url(one)}/identity/", one).body
    restart = f"{start}   # after Ctrl-C in that terminal"
    try:
        there = ServerIdentity.model_validate(identity)
    except ValidationError:
        finding = f"{where} is healthy but does not say what it is; it may be of another version of this project"
        yield fail("server", finding, restart)
        return
    difference, run, resume = _difference(context, there), identity.get("run"), context.resume
    # The server lets the successor of its own run in.
    own = resume is not None and not resume.fork and is_run(resume.run_folder, str(run))
    taken = bool(identity.get("session_alive")) and not own
    port = one.vllm_server_port + 1
    beside = f"export PORT={port} VLLM_SERVER_PORT={port}   # a second server; leave the first to its trainer"
    session = f", working for run {run}" if run else ""
    if difference:
        finding = f"{where} does not fit: {difference}{session}"
        yield fail("server", finding, f"{beside}\n{start}" if taken else restart)
    elif taken:
        finding = f"{where} fits, but it works for run {run}, whose trainer is alive: another is answered 409"
        yield (fail if context.role == "trainer" else warn)("server", finding, beside)
    else:
        yield ok("server", f"{where} fits (instance {there.instance_id}, {there.model}, {there.dtype}{session})")
    if there.max_model_len != one.max_model_len:
        finding = f"HANABI_MAX_MODEL_LEN is {there.max_model_len} there and {one.max_model_len} here"
        yield warn("server length", finding, f"export HANABI_MAX_MODEL_LEN={there.max_model_len}")


def _difference(context: Context, there: ServerIdentity) -> str | None:
    """Return what the server would answer to this trainer's session request; None: that it fits."""
    settings, folder = context.settings, context.model_folder
    difference = None
    try:
        # The quick reading of the tokenizer is nearly always the same; only the one that both processes use counts.
        for automatic in (False, True):
            ours = there.model_dump(include={"model_fingerprint", "tokenizer_hash", "chat_hash"})
            if folder is not None:
                chat = read_chat(folder, settings.thinking, automatic=automatic)
                ours = {"tokenizer_hash": tokenizer_hash(chat.tokenizer), "chat_hash": chat.hash}
                ours["model_fingerprint"] = model_fingerprint(folder)
            wanted = SessionRequest(
                protocol=PROTOCOL,
                run_id="doctor",
                trainer_id="0" * 32,
                secret="0" * 64,
                adapters=[SHARED_ADAPTER] if settings.adapters == "shared" else list(player_names(settings.players)),
                lora_rank=settings.lora_rank,
                dtype=settings.dtype,
                games=[GameClaim.model_validate(claim) for claim in game_claims(context.setups)],
                **ours,
            )
            try:
                check_fit(there, wanted)
                return None
            except SettingsError as error:
                difference = str(error)
    except (SettingsError, ValidationError):
        return None  # the checks of the dataset and of the chat template say so
    return difference
