"""Routes that play games or sample one reply, and those that ms-swift's `VLLMClient` calls beside them."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import LARGE_BODY, json_list, problem, read_body
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.reply_request import parse_reply_request
from hanabi_grpo.server.rollout_request import is_session_adapter, parse_rollout_request
from hanabi_grpo.server.scheduler import Scheduler, unwrap
from hanabi_grpo.types import Reply

logger = logging.getLogger(__name__)


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
        large = len(body) > LARGE_BODY
        wanted, rows = await asyncio.to_thread(parse_rollout_request, body) if large else parse_rollout_request(body)
        sampling = wanted.sampling(max_model_len)
        if wanted.names_session_adapters and "x-run-id" in request.headers:
            store.check_owner(request.headers)

        async def played() -> Response:
            own = store.is_owner(request.headers)
            return await json_list(await scheduler.run(rows, sampling, wanted.adapters, own=own))

        return await answered(request, played(), "rollout")

    @router.post("/reply/")
    async def reply(request: Request) -> Response:
        body = await read_body(request, what="reply request")
        large = len(body) > LARGE_BODY
        parse = partial(parse_reply_request, body, vocab_size=scheduler.vocab_size)
        wanted = await asyncio.to_thread(parse) if large else parse()
        if is_session_adapter(wanted.seat) and "x-run-id" in request.headers:
            store.check_owner(request.headers)

        async def sampled() -> Response:
            return JSONResponse({**_reply_to_json(await scheduler.reply(wanted)), "instance_id": scheduler.instance_id})

        return await answered(request, sampled(), "reply")

    async def answered(request: Request, work: Coroutine[Any, Any, Response], what: str) -> Response:
        """Answer with what the engine makes, or end it when the client hangs up."""
        made = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(_wait_for_hangup(request))
        try:
            await asyncio.wait({made, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not made.done():
                made.cancel()
                await asyncio.wait({made})
                return problem(499, f"the client hung up; its {what} was cancelled.")
            return made.result()
        except HanabiGrpoError:
            raise
        except (Exception, BaseExceptionGroup) as error:
            inner = unwrap(error)
            if isinstance(inner, HanabiGrpoError):
                raise inner from error
            logger.exception("%s failed in the engine", what)
            return problem(
                503 if engine.is_dead else 500, f"{what} failed in the engine: {type(inner).__name__}: {inner}"
            )
        finally:
            # Also when the server stops: games of a request that nobody waits for must not go on.
            made.cancel()
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


def _reply_to_json(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text.encode("utf-8", "replace").decode("utf-8"),
        "prompt_ids": reply.prompt_ids,
        "reply_ids": reply.reply_ids,
        "logprobs": reply.logprobs,
        "version": reply.version,
        "out_of_tokens": reply.out_of_tokens,
    }
