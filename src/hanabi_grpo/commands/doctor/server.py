"""The rollout server that is running, against these settings. Nothing is changed on it: no session is opened."""

from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from hanabi_grpo.client.rollout_client import each_server, server_name, server_url
from hanabi_grpo.commands.console import server_command
from hanabi_grpo.commands.doctor.answer import ask, is_local, port_owner, rollout_servers
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, read_chat
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.handshake import PROTOCOL, GameClaim, SessionRequest, game_claims, tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import is_run
from hanabi_grpo.server.identity import ServerIdentity, check_fit
from hanabi_grpo.types import SHARED_ADAPTER, player_names


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
        elif is_local(host) and (owner := port_owner(port)) in rollout_servers() and owner:
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
    try:
        there = ServerIdentity.model_validate(identity)
    except ValidationError:
        finding = f"{where} is healthy but does not say what it is; it may be of another version of this project"
        yield fail("server", finding, f"{server_command(context.loaded)}   # after Ctrl-C in that terminal")
        return
    difference = _difference(context, there)
    session = f", working for run {identity['run']}" if identity.get("run") else ""
    taken = bool(identity.get("session_alive")) and not _is_own_run(context, str(identity["run"]))
    port = settings.vllm_server_port + 1
    beside = f"export PORT={port} VLLM_SERVER_PORT={port}   # a second server; leave the first to its trainer"
    if difference:
        finding = f"{where} does not fit: {difference}{session}"
        start = server_command(context.loaded)
        yield fail("server", finding, f"{beside}\n{start}" if taken else f"{start}   # after Ctrl-C in that terminal")
    elif taken:
        finding = (
            f"{where} fits, but it works for run {identity['run']}, whose trainer is alive: another is answered 409"
        )
        yield (fail if context.role == "trainer" else warn)("server", finding, beside)
    else:
        what = f"instance {there.instance_id}, {there.model}, {there.dtype}"
        yield ok("server", f"{where} fits ({what}{session})")
    if there.max_model_len != settings.max_model_len:
        finding = f"HANABI_MAX_MODEL_LEN is {there.max_model_len} there and {settings.max_model_len} here"
        yield warn("server length", finding, f"export HANABI_MAX_MODEL_LEN={there.max_model_len}")


def _is_own_run(context: Context, run: str) -> bool:
    """Tell whether a session is of the run that RESUME goes on with: the server lets its successor in."""
    try:
        resume = plan_resume(context.settings)
    except HanabiGrpoError:
        return False  # the check of the run folder says so
    return resume is not None and not resume.fork and is_run(resume.run_folder, run)


def _difference(context: Context, there: ServerIdentity) -> str | None:
    """Return what the server would answer to this trainer's session request; None: that it fits."""
    settings, folder = context.settings, context.model_folder
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
        return difference
    except (SettingsError, ValidationError):
        return None  # the checks of the dataset and of the chat template say so
