"""Start the rollout server: port first, then the engine, then the routes; and again when the engine dies."""

import asyncio
import logging
import os
import signal
import socket
import sys
import uuid
from typing import TYPE_CHECKING

from hanabi_grpo.errors import HanabiGrpoError, ServerError
from hanabi_grpo.logs import LineRing, set_up_logging
from hanabi_grpo.processes import die_with_parent
from hanabi_grpo.server.plugin import PLUGIN_NAME
from hanabi_grpo.server.restart import Restarts, reap_children, restart_at_latest, stop_within

if TYPE_CHECKING:
    from hanabi_grpo.settings import Settings

logger = logging.getLogger(__name__)


def serve(settings: "Settings", extra_args: list[str]) -> None:
    """Run the server until SIGINT or SIGTERM.

    Args:
        settings: Resolved settings.
        extra_args: Options for vLLM itself, e.g. ["--max-num-seqs", "64"].

    Raises:
        ServerError: The port is taken.
        SettingsError: MODEL cannot be had.
        SystemExit: A signal, or the engine died too often (`restart.EXIT_CODE`).
    """
    restarts = Restarts(allowed=settings.engine_restarts)
    reap_children()
    ring = LineRing()
    set_up_logging(ring=ring)
    listener = _listen(settings.host, settings.port)
    if settings.die_with_parent:
        die_with_parent(signal.SIGTERM)
    _prepare_environment(settings.device == "cpu")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        died = asyncio.run(_run(settings, extra_args, listener, ring, restarts))
    except HanabiGrpoError:
        raise
    except Exception:
        if restarts.count == 0:
            raise
        # It started before with the same settings: what the dead one held may not be free yet.
        logger.exception("the engine did not start again")
        died = True
    if died:
        restarts.after_engine_death()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle off; without it every small answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"PORT={port}: cannot listen on {host}:{port} ({error.strerror}). Stop what runs there, or choose another "
            f"port here and the same in the other terminal: PORT={port + 1} and VLLM_SERVER_PORT={port + 1}."
        ) from error
    return listener


def _prepare_environment(on_cpu: bool) -> None:
    # ms-swift registers a vLLM plugin that imports torchvision, which text models do without.
    os.environ["VLLM_PLUGINS"] = PLUGIN_NAME
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if on_cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        cores = sorted(os.sched_getaffinity(0))
        # "auto" leaves the worker one of two cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        # Threads that spin while they wait would take the cores from the trainer, whose turn it then is.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


async def _run(
    settings: "Settings", extra_args: list[str], listener: socket.socket, ring: LineRing, restarts: Restarts
) -> bool:
    from transformers import AutoConfig, AutoTokenizer

    from hanabi_grpo.chat import ChatFormat
    from hanabi_grpo.fingerprint import model_fingerprint, resolve_model
    from hanabi_grpo.handshake import tokenizer_hash
    from hanabi_grpo.server.adapter_files import linear_shapes
    from hanabi_grpo.server.adapter_store import AdapterStore
    from hanabi_grpo.server.app import create_app
    from hanabi_grpo.server.engine import Engine, EngineConfig
    from hanabi_grpo.server.identity import ServerIdentity
    from hanabi_grpo.server.limits import Limits
    from hanabi_grpo.server.scheduler import Scheduler
    from hanabi_grpo.server.serving import serve_until_dead

    folder = resolve_model(settings.model)
    chat = ChatFormat.from_tokenizer(AutoTokenizer.from_pretrained(folder), thinking=settings.thinking)
    fingerprint = model_fingerprint(folder)
    logger.info("engine: starting on %s with %s (%s)", settings.device, folder, fingerprint)
    engine = Engine(
        EngineConfig(
            model=str(folder),
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_lora_rank=settings.lora_rank,
            num_adapters=settings.players,
            tensor_parallel_size=settings.vllm_tensor_parallel_size,
            data_parallel_size=settings.vllm_data_parallel_size,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            seed=settings.seed,
        ),
        extra_args,
    )
    store = AdapterStore(
        engine,
        max_rank=settings.lora_rank,
        shapes=linear_shapes(folder),
        session_timeout=settings.session_timeout,
    )
    try:
        identity = ServerIdentity(
            instance_id=uuid.uuid4().hex[:12],
            model=settings.model,
            model_fingerprint=fingerprint,
            tokenizer_hash=tokenizer_hash(chat.tokenizer),
            chat_hash=chat.hash,
            dtype=settings.dtype,
            max_lora_rank=settings.lora_rank,
            max_players=settings.players,
            max_model_len=settings.max_model_len,
            session_timeout=settings.session_timeout,
        )
        scheduler = Scheduler(
            engine,
            chat,
            store,
            max_model_len=settings.max_model_len,
            games_at_once=settings.games_at_once,
            instance_id=identity.instance_id,
            vocab_size=AutoConfig.from_pretrained(folder).get_text_config().vocab_size,
        )
        key = settings.api_key.get_secret_value() if settings.api_key else None
        limits = Limits(adapter_bytes=store.max_upload_bytes)
        app = create_app(engine, store, scheduler, identity, ring, api_key=key, limits=limits)
        logger.info("ready on http://%s:%d (instance %s)", settings.host, settings.port, identity.instance_id)
        return await serve_until_dead(
            app,
            listener,
            lambda: engine.is_dead,
            limits=limits,
            on_death=lambda: restart_at_latest(restarts),
        )
    finally:
        store.close()
        if engine.is_dead:
            stop_within(engine.stop)
        else:
            engine.stop()
        logger.info("stopped; engine core and workers ended")
