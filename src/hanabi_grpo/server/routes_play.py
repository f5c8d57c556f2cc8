"""Routes that play games or sample one reply."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.rollout.messages import ReplyAnswer
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import LARGE_BODY, played_games, problem, read_body
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.requests import parse_reply_request, parse_rollout_request
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings.refs import is_frozen, seat_adapter

_Wanted = TypeVar("_Wanted")


def play_routes(engine: Engine, store: AdapterStore, scheduler: Scheduler) -> APIRouter:
    """Build the routes."""
    router = APIRouter()

    async def parsed(request: Request, parse: Callable[[bytes], _Wanted]) -> _Wanted:
        body = await read_body(request)
        # A body of many megabytes takes seconds to check; small ones are not worth a thread.
        return await asyncio.to_thread(parse, body) if len(body) > LARGE_BODY else parse(body)

    def check_owner(request: Request, seats: Iterable[str]) -> None:
        # The name of a session's adapter says nothing of whose weights it is; that of a lent one does.
        named = any(seat_adapter(seat) is not None and not is_frozen(seat) for seat in seats)
        if named and "x-run-id" in request.headers:
            store.ownership.check(request.headers)

    @router.post("/rollout/")
    async def rollout(request: Request) -> Response:
        tasks, sampling = await parsed(request, parse_rollout_request)
        check_owner(request, {seat for task in tasks for seat in task.seats or ()})
        own = store.ownership.is_owner(request.headers)

        async def played() -> Response:
            return await played_games(await scheduler.run(tasks, sampling, own=own))

        return await _answered(request, played())

    @router.post("/reply/")
    async def reply(request: Request) -> Response:
        wanted = await parsed(request, partial(parse_reply_request, vocab_size=scheduler.model.vocab_size))
        check_owner(request, [wanted.seat])

        async def sampled() -> Response:
            made = await scheduler.reply(wanted)
            answer = {name: getattr(made, name) for name in ReplyAnswer.__struct_fields__}
            return JSONResponse({**answer, "instance_id": scheduler.instance_id})

        return await _answered(request, sampled())

    @router.post("/reset_prefix_cache/")
    async def reset_prefix_cache() -> dict[str, bool]:
        # A measurement that is to repeat bit for bit starts from an empty cache.
        return {"reset": await engine.reset_prefix_cache()}

    return router


async def _answered(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Answer with what the engine makes, or end it when the client hangs up."""
    made = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_wait_for_hangup(request))
    try:
        await asyncio.wait({made, watch}, return_when=asyncio.FIRST_COMPLETED)
        if made.done():
            return made.result()
        made.cancel()
        await asyncio.wait({made})
        return problem(499, "the client hung up; its request was cancelled.")
    finally:
        # Also when the server stops: games of a request that nobody waits for must not go on.
        made.cancel()
        watch.cancel()


async def _wait_for_hangup(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(1.0)
