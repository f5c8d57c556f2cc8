"""Routes that play games or sample one reply; requests are checked before anything is sampled."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import ReplyAnswer, ReplyRequest, RolloutRequest
from hanabi_grpo.rollout.tasks import RequestedTask, read_tasks
from hanabi_grpo.runs.wire import read_struct
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import played_games, problem
from hanabi_grpo.server.engine import Engine, SamplingConfig
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings.refs import BASE, check_seat, is_frozen, is_scripted, seat_adapter


def play_routes(engine: Engine, store: AdapterStore, scheduler: Scheduler) -> APIRouter:
    """Build the routes."""
    router = APIRouter()

    def check_owner(request: Request, seats: Iterable[str]) -> None:
        # The name of a session's adapter says nothing of whose weights it is; that of a lent one does.
        named = any(seat_adapter(seat) is not None and not is_frozen(seat) for seat in seats)
        if named and "x-run-id" in request.headers:
            store.ownership.check(request.headers)

    @router.post("/rollout/")
    async def rollout(request: Request) -> Response:
        # Beside the event loop: a body of many megabytes takes seconds to check.
        tasks, sampling = await asyncio.to_thread(parse_rollout_request, await request.body())
        check_owner(request, {seat for task in tasks for seat in task.seats or ()})
        own = store.ownership.is_owner(request.headers)

        async def played() -> Response:
            return await played_games(await scheduler.run(tasks, sampling, own=own))

        return await _answered(request, played())

    @router.post("/reply/")
    async def reply(request: Request) -> Response:
        vocab_size = scheduler.model.vocab_size
        wanted = await asyncio.to_thread(parse_reply_request, await request.body(), vocab_size=vocab_size)
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


def parse_rollout_request(body: bytes) -> tuple[list[RequestedTask], SamplingConfig]:
    """Return the tasks of a rollout request, and how replies are sampled.

    Raises:
        SettingsError: The body is no such request, or a task cannot be played; says where.
    """
    try:
        wanted = read_struct(RolloutRequest, body)
    except ValueError as error:
        raise SettingsError(f"rollout request: {error}.") from None
    return read_tasks(wanted), SamplingConfig(max_tokens=wanted.max_tokens, temperature=wanted.temperature)


def parse_reply_request(body: bytes, *, vocab_size: int) -> ReplyRequest:
    """Return a request for one reply, of a model whose token embedding has `vocab_size` rows.

    Raises:
        SettingsError: The body is no such request; says where.
    """
    try:
        wanted = read_struct(ReplyRequest, body)
    except ValueError as error:
        raise SettingsError(f"reply request: {error}.") from None
    if is_scripted(check_seat(wanted.seat)):
        raise SettingsError(
            f"reply request: seat {wanted.seat!r} is a script, which needs no server; play it where the game is, or "
            f"ask for adapter@version (player_0@7) or {BASE}."
        )
    for number, turn in enumerate(wanted.turns):
        highest = max(turn.reply_ids)
        if highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids holds {highest}; this model has ids 0 to {vocab_size - 1}. "
                "Send the ids that this server sampled."
            )
    return wanted
