"""Routes that play games or sample one reply; requests are checked before anything is sampled.

The server of another model may have this one's as a partner behind a URL, so a reply can be had as
from OpenAI's API."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hanabi_grpo.agents.served_model import PromptTokens
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import (
    ChatRequest,
    DroppedRow,
    ReplyAnswer,
    ReplyRequest,
    RequestedTask,
    RolloutRequest,
    ScoreRequest,
    read_tasks,
)
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.door import problem
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.pacing import in_slices
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings.refs import BASE, check_seat, is_frozen, is_scripted, is_url, seat_adapter
from hanabi_grpo.types import DroppedGame, Episode

_Request = TypeVar("_Request", RolloutRequest, ReplyRequest, ScoreRequest, ChatRequest)


def play_routes(store: AdapterStore, scheduler: Scheduler) -> APIRouter:
    """Build the routes."""
    router = APIRouter()

    @router.post("/rollout/")
    async def rollout(request: Request) -> Response:
        # Beside the event loop: a body of many megabytes takes seconds to check.
        tasks, sampling = await asyncio.to_thread(parse_rollout_request, await request.body())
        check_owner(store, request, {seat for task in tasks for seat in task.seats})
        own = store.ownership.is_owner(request.headers)

        async def played() -> Response:
            prompts = PromptTokens()
            return await played_games(
                await scheduler.run(tasks, sampling, own=own, prompts=prompts), prompts
            )

        return await answered(request, played())

    @router.post("/reply/")
    async def reply(request: Request) -> Response:
        vocab_size = scheduler.model.vocab_size
        wanted = await asyncio.to_thread(
            parse_reply_request, await request.body(), vocab_size=vocab_size
        )
        check_owner(store, request, [wanted.seat])

        async def sampled() -> Response:
            made = await scheduler.reply(wanted)
            answer = {name: getattr(made, name) for name in ReplyAnswer.__struct_fields__}
            return JSONResponse({**answer, "instance_id": scheduler.instance_id})

        return await answered(request, sampled())

    @router.post("/score/")
    async def score(request: Request) -> Response:
        wanted = await asyncio.to_thread(
            read_body, "score request", ScoreRequest, await request.body()
        )
        _check_sampled("score request", wanted.seat)
        check_owner(store, request, [wanted.seat])

        async def scored() -> Response:
            return Response(
                msgspec.json.encode(await scheduler.score(wanted)), media_type="application/json"
            )

        return await answered(request, scored())

    return router


def check_owner(store: AdapterStore, request: Request, seats: Iterable[str]) -> None:
    """Refuse a trainer that names the session's adapters and does not have the session."""
    # The name of a session's adapter says nothing of whose weights it is; that of a lent one does.
    named = any(seat_adapter(seat) is not None and not is_frozen(seat) for seat in seats)
    if named and "x-run-id" in request.headers:
        store.ownership.check(request.headers)


async def answered(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Answer with what the engine makes, or end it when the client hangs up."""
    made = asyncio.ensure_future(work)
    # The body was read before: what comes next is the end of the connection.
    hang_up = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({made, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if made.done():
            return made.result()
        made.cancel()
        await asyncio.wait({made})
        return problem(499, "the client hung up; its request was cancelled.")
    finally:
        # Also when the server stops: games of a request that nobody waits for must not go on.
        made.cancel()
        hang_up.cancel()


async def played_games(
    groups: Iterable[Iterable[Episode | DroppedGame]], prompts: PromptTokens
) -> Response:
    """Return the games of a request's tasks, per task in order of their numbers, as a
    `RolloutAnswer`.

    The answer has megabytes. A value is encoded in one go that keeps the interpreter's lock
    meanwhile, so a thread would not help: each game is encoded by itself."""
    pieces: list[bytes] = []
    dropped: list[DroppedRow] = []
    async for number, game in in_slices(
        (number, game) for number, group in enumerate(groups) for game in group
    ):
        if isinstance(game, DroppedGame):
            dropped.append(DroppedRow(task=number, game=game.game, reason=game.reason))
        else:
            pieces.append((b"," if pieces else b"") + msgspec.json.encode(game))
    tokens = b',"prompt_tokens":%d,"cached_tokens":%d}' % (prompts.given, prompts.cached)
    pieces = [b'{"episodes":[', *pieces, b'],"dropped":', msgspec.json.encode(dropped), tokens]
    length = str(sum(map(len, pieces)))
    return StreamingResponse(
        in_slices(pieces), media_type="application/json", headers={"content-length": length}
    )


def read_body(what: str, struct: type[_Request], body: bytes) -> _Request:
    """Return a request of this kind; a SettingsError says what is wrong where."""
    try:
        return read_struct(struct, body)
    except ValueError as error:
        raise SettingsError(f"{what}: {error}.") from None


def parse_rollout_request(body: bytes) -> tuple[list[RequestedTask], SamplingConfig]:
    """Return the tasks of a rollout request, and how replies are sampled; a SettingsError says what
    is wrong where.
    """
    wanted = read_body("rollout request", RolloutRequest, body)
    return read_tasks(wanted), SamplingConfig(
        max_tokens=wanted.max_tokens, temperature=wanted.temperature
    )


def _check_sampled(what: str, seat: str) -> None:
    if is_scripted(check_seat(seat)):
        raise SettingsError(
            f"{what}: seat {seat!r} is a script, which needs no server; play it where the game "
            "is, or ask for "
            f"adapter@version (player_0@7) or {BASE}."
        )
    if is_url(seat):
        raise SettingsError(
            f"{what}: seat {seat!r} is a model behind a URL, which only sits in games; ask it "
            "itself."
        )


def parse_reply_request(body: bytes, *, vocab_size: int) -> ReplyRequest:
    """Return a request for one reply of a model with so many ids; a SettingsError says what is
    wrong where.
    """
    wanted = read_body("reply request", ReplyRequest, body)
    _check_sampled("reply request", wanted.seat)
    for number, turn in enumerate(wanted.turns):
        highest = max(turn.reply_ids)
        if highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids holds {highest}; this model has ids 0 "
                f"to {vocab_size - 1}. "
                "Send the ids that this server sampled."
            )
    return wanted
