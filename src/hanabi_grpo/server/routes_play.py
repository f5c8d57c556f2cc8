"""Routes that play games or sample one reply."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import LARGE_BODY, played_games, problem, read_body
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.requests import is_session_adapter, parse_reply_request, parse_rollout_request
from hanabi_grpo.server.scheduler import Scheduler, unwrap
from hanabi_grpo.types import Reply

logger = logging.getLogger(__name__)
_Wanted = TypeVar("_Wanted")


def play_routes(engine: Engine, store: AdapterStore, scheduler: Scheduler) -> APIRouter:
    """Build the routes.

    Args:
        engine: Samples replies.
        store: Holds the adapters.
        scheduler: Plays the games.
    """
    router = APIRouter()

    async def parsed(request: Request, parse: Callable[[bytes], _Wanted]) -> _Wanted:
        body = await read_body(request)
        # A body of many megabytes takes seconds to check; small ones are not worth a thread.
        return await asyncio.to_thread(parse, body) if len(body) > LARGE_BODY else parse(body)

    def check_owner(request: Request, seats: Iterable[str]) -> None:
        if "x-run-id" in request.headers and any(map(is_session_adapter, seats)):
            store.ownership.check(request.headers)

    @router.post("/rollout/")
    async def rollout(request: Request) -> Response:
        tasks, sampling = await parsed(request, parse_rollout_request)
        check_owner(request, {seat for task in tasks for seat in task.seats or ()})

        async def played() -> Response:
            return await played_games(
                await scheduler.run(tasks, sampling, own=store.ownership.is_owner(request.headers))
            )

        return await answered(request, played(), "rollout")

    @router.post("/reply/")
    async def reply(request: Request) -> Response:
        wanted = await parsed(request, partial(parse_reply_request, vocab_size=scheduler.vocab_size))
        check_owner(request, [wanted.seat])

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

    @router.post("/reset_prefix_cache/")
    async def reset_prefix_cache() -> dict[str, bool]:
        # A measurement that is to repeat bit for bit starts from an empty cache.
        return {"reset": await engine.reset_prefix_cache()}

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
