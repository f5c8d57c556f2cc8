"""The server's parts, put together: one place for the command, for the benchmarks, and for what a
dry run shows.
"""

import atexit
import contextlib
import gc
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.logs import LineRing
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.server.adapter_loader import OwnedFolder
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.app import create_app
from hanabi_grpo.server.engine import Engine, engine_options
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.plugin import PLUGIN_NAME
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.defaults import LAPTOP, tiny_model_command

logger = logging.getLogger(__name__)

SOCKETS = "hanabi-sockets-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutServer:
    """A started engine and what is around it; `app` serves it."""

    engine: Engine
    chat: ChatFormat
    store: AdapterStore
    identity: ServerIdentity
    app: FastAPI


def prepare_environment(on_cpu: bool) -> None:
    """Set what vLLM reads from the environment, before it is imported; what the user set stays."""
    # ms-swift registers a vLLM plugin that imports torchvision, which text models do without.
    os.environ["VLLM_PLUGINS"] = PLUGIN_NAME
    # vLLM forks on CUDA: a forked engine core counts its parent's plugins as its own and loads
    # none, so nothing ties it to the server, and it keeps the listening socket.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Replies that are unpacked in one go; the default of 128 keeps everything else in the event
    # loop waiting for it.
    os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "32")
    # vLLM leaves its sockets, nine a start, in the temporary folder. A socket's path has 107
    # characters at most.
    home = tempfile.gettempdir()
    if (
        "VLLM_RPC_BASE_PATH" not in os.environ
        and len(f"{home}/{SOCKETS}12345678/{uuid.uuid4()}") <= 107
    ):
        folder = OwnedFolder(Path(home), SOCKETS)
        os.environ["VLLM_RPC_BASE_PATH"] = str(folder.path)
        atexit.register(folder.close)
    if on_cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # All that vLLM would compile here is how it counts ranks of logprobs, seconds of the first
        # game's for a sum.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        # One core is for games, tokens and HTTP: with a small model they are as much work as its
        # products are, and threads that wait for a core that is taken hold the others up.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
        # A thread that is bound to a core waits for it also where another one is idle.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@contextlib.contextmanager
def rollout_server(
    settings: Settings,
    ring: LineRing,
    extra_args: Sequence[str] = (),
    partner_calls: Path | None = None,
) -> Iterator[RolloutServer]:
    """Start the engine, as `Engine` says and after `prepare_environment`, and end it with the
    block.

    `ring` has the lines that `/log/` hands out, `extra_args` are vLLM's own, and `partner_calls` is
    where calls of HANABI_PARTNER_URLS are recorded."""
    from transformers import AutoConfig, AutoTokenizer

    board = settings.preset or LAPTOP
    folder: Path = resolve_model(settings.model, tiny_model_command([board], settings.players))
    chat = ChatFormat.from_tokenizer(
        AutoTokenizer.from_pretrained(folder), thinking=settings.thinking
    )
    fingerprint = model_fingerprint(folder)
    logger.info("engine: starting on %s with %s (%s)", settings.device, folder, fingerprint)
    if settings.device == "gpu":
        # vLLM tells of it at a level that is off here.
        logger.info(
            "engine: compiling kernels and capturing CUDA graphs can take minutes without a line"
        )
    shapes = linear_shapes(folder)
    engine = Engine(
        engine_options(settings, str(folder), shapes), extra_args, patience=settings.engine_timeout
    )
    store = AdapterStore(
        engine,
        max_rank=settings.lora_rank,
        shapes=shapes,
        dtype=settings.dtype,
        session_timeout=settings.session_timeout,
    )
    if (partners := UrlPartners(settings, partner_calls)).by_spec:
        logger.info(
            "partners: %s; their calls are recorded in %s", partners.described, partner_calls
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
            partners=partners.described,
        )
        model = Model(
            sampler=engine,
            chat=chat,
            max_model_len=settings.max_model_len,
            vocab_size=AutoConfig.from_pretrained(folder).get_text_config().vocab_size,
            partners=partners,
        )
        at_once, instance = settings.games_at_once, identity.instance_id
        scheduler = Scheduler(model, store, games_at_once=at_once, instance_id=instance)
        key = settings.api_key.get_secret_value() if settings.api_key else None
        app = create_app(engine, store, scheduler, identity, ring, api_key=key, host=settings.host)
        # vLLM's 670,000 objects stay to the end; each full collection would hold the event loop up
        # to find that out.
        gc.collect()
        gc.freeze()
        yield RolloutServer(engine=engine, chat=chat, store=store, identity=identity, app=app)
    finally:
        store.close()
        try:
            engine.stop()
        except Exception:
            if not engine.is_dead:
                raise
            logger.exception("ending the dead engine failed")
        logger.info("stopped; engine core and workers ended")
