"""Routes that play games, and those that ms-swift's `VLLMClient` calls beside them."""

import asyncio
import logging
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import problem, read_body
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.rollout_request import parse_rollout_request
from hanabi_grpo.server.scheduler import Scheduler, unwrap

logger = logging.getLogger(__name__)

_INLINE_BYTES = 1 << 20


def play_routes(engine: Engine, store: AdapterStore, scheduler: Scheduler, *, max_model_len: int) -> APIRouter:
    """Build the routes.

    Args:
        engine: Samples replies.
        store: Holds the adapters.
        scheduler: Plays the games.
        max_model_len: Tokens of one conversation.
    """
    router = APIRouter()

    @router.post("/infer/")
    async def infer(request: Request) -> Response:
        body = await read_body(request, what="rollout request")
        # A body of many megabytes takes seconds to check; small ones are not worth a thread.
        large = len(body) > _INLINE_BYTES
        wanted, rows = await asyncio.to_thread(parse_rollout_request, body) if large else parse_rollout_request(body)
        sampling = wanted.sampling(max_model_len)
        if wanted.adapters and any(wanted.adapters.values()) and "x-run-id" in request.headers:
            store.check_owner(request.headers)
        play = asyncio.ensure_future(scheduler.run(rows, sampling, wanted.adapters))
        watch = asyncio.ensure_future(_wait_for_hangup(request))
        try:
            await asyncio.wait({play, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not play.done():
                play.cancel()
                await asyncio.wait({play})
                return problem(499, "the client hung up; its games were cancelled.")
            return JSONResponse(play.result())
        except HanabiGrpoError:
            raise
        except (Exception, BaseExceptionGroup) as error:
            inner = unwrap(error)
            if isinstance(inner, HanabiGrpoError):
                raise inner from error
            logger.exception("rollout failed in the engine")
            return problem(
                503 if engine.is_dead else 500, f"rollout failed in the engine: {type(inner).__name__}: {inner}"
            )
        finally:
            # Also when the server stops: games of a request that nobody waits for must not go on.
            play.cancel()
            watch.cancel()

    @router.get("/get_world_size/")
    async def world_size() -> dict[str, int]:
        return {"world_size": engine.config.tensor_parallel_size * engine.config.data_parallel_size}

    @router.post("/get_engine_type/")
    async def engine_type() -> dict[str, Any]:
        return {"engine_type": "AsyncLLMEngine", "enable_multi_turn": True, "use_gym_env": True, "enable_lora": True}

    @router.post("/reset_prefix_cache/")
    async def reset_prefix_cache() -> dict[str, bool]:
        return {"reset": await engine.reset_prefix_cache()}

    async def nothing_to_do() -> dict[str, str]:
        return {"message": "nothing to do: adapters travel over HTTP and text models have no other cache"}

    for route in (
        "reset_encoder_cache",
        "reset_mm_cache",
        "init_communicator",
        "close_communicator",
        "process_weights_after_loading",
    ):
        router.post(f"/{route}/")(nothing_to_do)
    return router


async def _wait_for_hangup(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(1.0)
