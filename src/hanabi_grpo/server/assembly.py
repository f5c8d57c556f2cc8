"""Assembly of the server's parts: for the command, for the benchmarks, and for a dry run."""

import asyncio
import atexit
import contextlib
import gc
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from hanabi_grpo.agents.judge import Judge
from hanabi_grpo.agents.served_model import ONLY_BASE, Model, TeamModels
from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.envs.access import GameAccess
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.tools.mcp_client import end_servers
from hanabi_grpo.logs import LineRing
from hanabi_grpo.processes import usable_cores
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.datasets import played_setups, training_rows, validation_rows
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.rollout.sampler import EngineHealth, Sampler
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.server import vllm_log
from hanabi_grpo.server.adapter_files import Shapes, linear_shapes
from hanabi_grpo.server.adapter_loader import AdapterBase, OwnedFolder
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.app import create_app
from hanabi_grpo.server.engine import VllmSampler, engine_options
from hanabi_grpo.server.engines import health_of
from hanabi_grpo.server.identity import BaseIdentity, ServerIdentity
from hanabi_grpo.server.person_games import PersonSettings
from hanabi_grpo.server.plugin import PLUGIN_NAME
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.sleep import SleepingSampler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.base_models import base_models, bases_by_player
from hanabi_grpo.settings.defaults import LAPTOP, tiny_model_command

logger = logging.getLogger(__name__)

SOCKETS = "hanabi-sockets-"
"""Beginning of the name of a folder for vLLM's sockets."""

_MAX_SOCKET_PATH = 107
"""Characters of a socket's path on Linux."""
_RANDOM_PART = "12345678"
"""Stands for the suffix that `tempfile.mkdtemp` adds to a folder's name."""
_INSTANCE_LETTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutServer:
    """A started engine and the parts around it; `app` serves it."""

    engine: Sampler
    """Samples replies; with several base models, player_0's engine."""
    health: EngineHealth
    """The health of all engines together."""
    chat: ChatFormat
    """Turns conversations into token ids; with several base models, player_0's format."""
    store: AdapterStore
    """The adapters."""
    identity: ServerIdentity
    """The identity that trainers compare themselves with."""
    app: FastAPI
    """The routes."""


def prepare_environment(on_cpu: bool) -> None:
    """Set the environment variables that vLLM reads, before it is imported.

    Variables that the user has set are kept, except those that tie the engine to the server.

    Args:
        on_cpu: Whether the engine runs on a CPU.
    """
    # ms-swift registers a vLLM plugin that imports torchvision, which text models do not need.
    os.environ["VLLM_PLUGINS"] = PLUGIN_NAME
    # vLLM forks on CUDA: a forked engine core assumes that its parent's plugins are loaded and
    # loads none, so nothing ties it to the server, and it keeps the listening socket.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(vllm_log.CONFIG))
    vllm_log.configure_early()
    os.environ.setdefault("PYTHONWARNINGS", vllm_log.PYTHONWARNINGS)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Number of replies that are unpacked at once; the default of 128 blocks the event loop for too
    # long.
    os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "32")
    if "VLLM_RPC_BASE_PATH" not in os.environ:
        _place_sockets()
    if on_cpu:
        _prepare_cpu()
    else:
        # vLLM (0.32) does not use FlashInfer's sampler for requests with seeds or with processed
        # logprobs. All of ours have them, so it would be imported and compiled for nothing.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")


def _place_sockets() -> None:
    """Put vLLM's sockets into a folder that is removed when this process ends.

    By default vLLM leaves nine sockets per start in the temporary folder.
    """
    home = tempfile.gettempdir()
    longest_path = f"{home}/{SOCKETS}{_RANDOM_PART}/{uuid.uuid4()}"
    if len(longest_path) > _MAX_SOCKET_PATH:
        return
    folder = OwnedFolder(Path(home), SOCKETS)
    os.environ["VLLM_RPC_BASE_PATH"] = str(folder.path)
    atexit.register(folder.close)


def _prepare_cpu() -> None:
    # At every start, torch (2.13) warns that memory is bound to the nodes of the engine's cores.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # vLLM would only compile its ranking of logprobs here: a sum, for which the first game would
    # wait seconds.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # One core is left for games, tokens and HTTP: with a small model they are as much work as its
    # matrix products, and threads that wait for a busy core delay the others.
    num_threads = max(1, usable_cores() - 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    # With more than one thread, vLLM splits a sequence's keys if a batch has few sequences, and the
    # last bits of its logprobs then depend on the other sequences in the batch.
    os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")
    # A thread that is bound to a core waits for it even if another core is idle.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@contextlib.contextmanager
def rollout_server(
    settings: Settings,
    ring: LineRing,
    extra_args: Sequence[str] = (),
    partner_calls: Path | None = None,
    judge_calls: Path | None = None,
) -> Iterator[RolloutServer]:
    """Start the engine and build the server around it; both stop at the end of the block.

    Call it after `prepare_environment`, on the main thread and inside a running event loop; the
    engine needs both.

    Args:
        settings: The server's settings.
        ring: The log lines that `/log/` returns.
        extra_args: vLLM's own command line options.
        partner_calls: File that records calls to the models of HANABI_PARTNER_URLS.
        judge_calls: File that records calls to HANABI_JUDGE.

    Yields:
        The server.
    """
    # Created before the engine, so that errors do not wait for its start of a minute.
    judge = Judge(settings, judge_calls) if settings.judge else None
    setups = read_setups(settings)
    access = GameAccess.of(setups)
    bases = read_bases(settings)
    started = start_engines(settings, bases, extra_args)
    engines: dict[str, Sampler] = dict(started)
    first = bases[0]
    engine = engines[first.name]
    is_team = len(bases) > 1
    others = []
    for base in bases[1:]:
        others.append(
            AdapterBase(
                name=base.name,
                engine=engines[base.name],
                shapes=base.shapes,
                fingerprint=base.fingerprint,
            )
        )
    if settings.sleep:
        engine = SleepingSampler(started[first.name], lambda: store.ownership.is_alive)
        engines[first.name] = engine
        logger.info("engine: sleeps while the trainer learns (HANABI_SLEEP=1)")
    base_of = bases_by_player(settings)
    store = AdapterStore(
        engine,
        max_rank=settings.largest_rank,
        shapes=first.shapes,
        dtype=settings.dtype,
        session_timeout=settings.session_timeout,
        name=first.name if is_team else ONLY_BASE,
        fingerprint=first.fingerprint,
        others=others,
        base_of=base_of,
    )
    partners = UrlPartners(settings, partner_calls)
    if partners.by_spec:
        logger.info(
            "partners: %s; their calls are recorded in %s", partners.described, partner_calls
        )
    for setup in setups:
        if setup.tools:
            logger.info(
                "tools: %s, at most %d calls per turn (%s)",
                ", ".join(tool.name for tool in setup.tools),
                setup.config.tool_calls,
                setup.spec.preset,
            )
    if judge is not None:
        logger.info("judge: %s; its calls are recorded in %s", judge.described, judge_calls)
    scheduler: Scheduler | None = None
    try:
        identity = ServerIdentity(
            instance_id=uuid.uuid4().hex[:_INSTANCE_LETTERS],
            model=settings.model,
            model_fingerprint=first.fingerprint,
            tokenizer_hash=first.tokenizer_hash,
            chat_hash=first.chat.hash,
            dtype=settings.dtype,
            max_lora_rank=settings.largest_rank,
            max_players=settings.players,
            max_model_len=settings.max_model_len,
            session_timeout=settings.session_timeout,
            partners=partners.described,
            judge=judge.agreement if judge else "",
            judge_model=judge.model if judge else "",
            bases=_identities(bases, base_of),
        )
        # Games take turns one at a time across all models.
        turnstile = asyncio.Lock()
        models = {}
        for base in bases:
            models[base.name if is_team else ONLY_BASE] = Model(
                sampler=engines[base.name],
                chat=base.chat,
                max_model_len=settings.max_model_len,
                vocab_size=base.vocab_size,
                turnstile=turnstile,
                partners=partners,
            )
        scheduler = Scheduler(
            TeamModels(models=models, base_of=base_of),
            store,
            games_at_once=settings.games_at_once,
            instance_id=identity.instance_id,
            game_timeout=settings.game_timeout,
            workers=WorkerPool(
                call_timeout=settings.call_timeout, session_workers=settings.game_workers
            ),
            judge=judge,
        )
        api_key = settings.api_key.get_secret_value() if settings.api_key else None
        health = health_of(engines)
        app = create_app(
            health,
            store,
            scheduler,
            identity,
            ring,
            api_key=api_key,
            host=settings.host,
            access=access,
            people=PersonSettings(
                setups=tuple(setups),
                max_tokens=settings.max_completion_length,
                temperature=settings.temperature,
            ),
        )
        # vLLM's 670,000 objects live until the end; scanning them in every full garbage collection
        # would block the event loop for nothing.
        gc.collect()
        gc.freeze()
        with contextlib.closing(scheduler.threads):
            yield RolloutServer(
                engine=engine,
                health=health,
                chat=first.chat,
                store=store,
                identity=identity,
                app=app,
            )
    finally:
        if scheduler is not None:
            scheduler.close()
        # A thread that reads a request may wait for an MCP server that does not respond, and at its
        # end the process waits for the thread.
        end_servers()
        store.close()
        _stop_all(engines)
        logger.info("stopped; engine core and workers ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseParts:
    """The facts about a base model that are known before an engine runs it."""

    name: str
    """As spelled in MODEL."""
    folder: Path
    """Its folder on this machine."""
    chat: ChatFormat
    fingerprint: str
    """See `model_fingerprint`."""
    tokenizer_hash: str
    """See `handshake.tokenizer_hash`."""
    shapes: Shapes
    """The modules that its adapters cover."""
    vocab_size: int
    """Rows of its token embedding."""


def read_bases(settings: Settings) -> list[BaseParts]:
    """Read the base models of a server, player_0's first.

    Raises:
        SettingsError: MODEL does not fit the players, or a model cannot be found.
    """
    from transformers import AutoConfig, AutoTokenizer

    tiny_model = tiny_model_command([settings.board or LAPTOP], settings.players, settings.env)
    bases = []
    for name in base_models(settings):
        folder = resolve_model(name, tiny_model)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        chat = ChatFormat.from_tokenizer(tokenizer, thinking=settings.thinking)
        bases.append(
            BaseParts(
                name=name,
                folder=folder,
                chat=chat,
                fingerprint=model_fingerprint(folder),
                tokenizer_hash=tokenizer_hash(chat.tokenizer),
                shapes=linear_shapes(folder),
                vocab_size=AutoConfig.from_pretrained(folder).get_text_config().vocab_size,
            )
        )
    return bases


def start_engines(
    settings: Settings, bases: Sequence[BaseParts], extra_args: Sequence[str]
) -> dict[str, VllmSampler]:
    """Start an engine for each base model, or none.

    Args:
        settings: The server's settings.
        bases: The base models, see `read_bases`.
        extra_args: vLLM's own command line options.

    Returns:
        The engines by the name of their base model.
    """
    engines: dict[str, VllmSampler] = {}
    try:
        for base in bases:
            logger.info(
                "engine: starting on %s with %s (%s)",
                settings.device,
                base.folder,
                base.fingerprint,
            )
            if settings.device == "gpu":
                # vLLM reports it at a log level that is disabled here.
                logger.info(
                    "engine: compiling kernels and capturing CUDA graphs can take minutes without "
                    "any output"
                )
            options = engine_options(
                settings, str(base.folder), base.shapes, num_engines=len(bases)
            )
            # This is the only place where a sampler is chosen.
            engines[base.name] = VllmSampler(options, extra_args, patience=settings.engine_timeout)
    except BaseException:
        _stop_all(engines)
        raise
    return engines


def _identities(bases: Sequence[BaseParts], base_of: Mapping[str, str]) -> dict[str, BaseIdentity]:
    """Return the identity of each player's base model, if there are several."""
    described = {}
    for base in bases:
        described[base.name] = BaseIdentity(
            model=base.name,
            model_fingerprint=base.fingerprint,
            tokenizer_hash=base.tokenizer_hash,
            chat_hash=base.chat.hash,
        )
    return {player: described[name] for player, name in base_of.items()}


def read_setups(settings: Settings) -> list[Setup[Any]]:
    """Return the games of these settings, of their DATASET and of their HANABI_EVAL_DATASET.

    Requests may name the files that these games name.

    Raises:
        SettingsError: One of them cannot be played.
    """
    setups = [settings.setup()]
    files = {
        "DATASET": (settings.dataset, training_rows),
        "HANABI_EVAL_DATASET": (settings.eval_dataset, validation_rows),
    }
    for variable, (file, read_rows) in files.items():
        if file is None:
            continue
        if Path(file).is_file():
            setups += played_setups(read_rows(settings))
        else:
            # The trainer reads it, perhaps on another machine; most rows do not name files.
            logger.info(
                "%s=%s is not on this machine, so requests cannot use problem files named in its "
                "rows",
                variable,
                file,
            )
    return setups


def _stop_all(engines: Mapping[str, Sampler]) -> None:
    for engine in engines.values():
        _stop(engine)


def _stop(engine: Sampler) -> None:
    try:
        engine.stop()
    except Exception:
        if not engine.is_dead:
            raise
        logger.exception("could not stop the dead engine")
