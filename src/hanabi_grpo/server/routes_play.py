"""Routes that play games, sample one reply, or score replies.

Requests are checked before anything is sampled. `/reply/` samples outside any game, so that another
server can use this server's model as a partner behind a URL.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hanabi_grpo.agents.served_model import PromptTokens
from hanabi_grpo.envs.access import GameAccess
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import (
    MAX_SCORES,
    ChatRequest,
    DroppedRow,
    ReplyAnswer,
    ReplyRequest,
    RequestedTask,
    RolloutRequest,
    ScoreRequest,
    read_tasks,
)
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.door import problem
from hanabi_grpo.server.pacing import in_slices
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings.refs import BASE, check_seat, is_frozen, is_scripted, is_url, seat_adapter
from hanabi_grpo.token_filter import TokenFilter
from hanabi_grpo.types import DroppedGame, Episode

CLIENT_CLOSED = 499
"""Status for a client that closed the connection; it appears only in logs."""

_JSON = "application/json"
_Request = TypeVar("_Request", RolloutRequest, ReplyRequest, ScoreRequest, ChatRequest)


def play_routes(store: AdapterStore, scheduler: Scheduler, access: GameAccess) -> APIRouter:
    """Build the routes.

    Args:
        store: Tells which trainer owns the session.
        scheduler: Plays games, samples and scores.
        access: The games and files that requests may name.
    """
    router = APIRouter()

    @router.post("/rollout/")
    async def rollout(request: Request) -> Response:
        body = await request.body()
        own = store.ownership.is_owner(request.headers)
        # In a thread: a body of many megabytes takes seconds to check.
        reading = scheduler.threads.requests(own=own)
        tasks, sampling = await reading.run(parse_rollout_request, body, access)
        seats = {seat for task in tasks for seat in task.seats}
        check_owner(store, request, seats)
        # Another trainer may have taken over while the body was checked.
        own = store.ownership.is_owner(request.headers)

        async def play() -> Response:
            prompts = PromptTokens()
            games = await scheduler.run(tasks, sampling, own=own, prompts=prompts)
            return await played_games(games, prompts)

        return await answered(request, play())

    @router.post("/reply/")
    async def reply(request: Request) -> Response:
        reading = scheduler.threads.requests(own=store.ownership.is_owner(request.headers))
        wanted = await reading.run(parse_reply_request, await request.body())
        check_owner(store, request, [wanted.seat])
        own = store.ownership.is_owner(request.headers)

        async def sample() -> Response:
            made = await scheduler.reply(wanted, own=own)
            answer = {name: getattr(made, name) for name in ReplyAnswer.__struct_fields__}
            answer["instance_id"] = scheduler.instance_id
            return JSONResponse(answer)

        return await answered(request, sample())

    @router.post("/score/")
    async def score(request: Request) -> Response:
        reading = scheduler.threads.requests(own=store.ownership.is_owner(request.headers))
        wanted = await reading.run(read_body, "score request", ScoreRequest, await request.body())
        _check_sampled("score request", wanted.seat)
        _check_number_of_scores(wanted)
        check_owner(store, request, [wanted.seat])
        own = store.ownership.is_owner(request.headers)

        async def compute() -> Response:
            answer = await scheduler.score(wanted, own=own)
            return Response(msgspec.json.encode(answer), media_type=_JSON)

        return await answered(request, compute())

    return router


def check_owner(store: AdapterStore, request: Request, seats: Iterable[str]) -> None:
    """Reject a trainer that names the session's adapters but does not own the session.

    The name of a session adapter does not identify its weights; that of a guest adapter does.

    Args:
        store: Has the session.
        request: The request.
        seats: Seat references in the request.

    Raises:
        SessionError: The request is from another trainer.
    """
    names_session = any(seat_adapter(seat) is not None and not is_frozen(seat) for seat in seats)
    if names_session and "x-run-id" in request.headers:
        store.ownership.check(request.headers)


async def answered(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return the response of a coroutine, or cancel it when the client disconnects."""
    answer = asyncio.ensure_future(work)
    # The body has already been read, so the next message is the end of the connection.
    disconnect = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        await asyncio.wait({answer})
        return problem(
            CLIENT_CLOSED, "the client closed the connection; its request was cancelled."
        )
    finally:
        # Also when the server stops: games that nobody waits for must not continue.
        answer.cancel()
        disconnect.cancel()


async def played_games(
    groups: Iterable[Iterable[Episode | DroppedGame]], prompts: PromptTokens
) -> Response:
    """Return the games of a request as a `RolloutAnswer`.

    The answer may have many megabytes. Encoding a value holds the interpreter lock throughout, so a
    thread would not help. Instead, each game is encoded separately.

    Args:
        groups: The games of each task, in order of their numbers.
        prompts: Prompt tokens of the request.
    """
    episodes: list[bytes] = []
    dropped: list[DroppedRow] = []
    numbered = ((number, game) for number, group in enumerate(groups) for game in group)
    async for number, game in in_slices(numbered):
        if isinstance(game, DroppedGame):
            dropped.append(
                DroppedRow(
                    task=number,
                    game=game.game,
                    reason=game.reason,
                    is_late=game.is_late,
                    num_turns=game.num_turns,
                    rewards=game.rewards,
                )
            )
            continue
        separator = b"," if episodes else b""
        episodes.append(separator + msgspec.json.encode(game))
    pieces = [
        b'{"episodes":[',
        *episodes,
        b'],"dropped":',
        msgspec.json.encode(dropped),
        b',"prompt_tokens":%d,"cached_tokens":%d}' % (prompts.given, prompts.cached),
    ]
    num_bytes = sum(len(piece) for piece in pieces)
    return StreamingResponse(
        in_slices(pieces), media_type=_JSON, headers={"content-length": str(num_bytes)}
    )


def read_body(what: str, struct: type[_Request], body: bytes) -> _Request:
    """Return the request of a body.

    Args:
        what: Name of the request in messages, e.g. "chat request".
        struct: Type of the request.
        body: JSON.

    Raises:
        SettingsError: It is malformed; the message names the field and the problem.
    """
    try:
        return read_struct(struct, body)
    except ValueError as error:
        raise SettingsError(f"{what}: {error}.") from None


def parse_rollout_request(
    body: bytes, access: GameAccess
) -> tuple[list[RequestedTask], SamplingConfig]:
    """Return the tasks of a rollout request, and its sampling parameters.

    Args:
        body: JSON.
        access: The games and files that its tasks may name.

    Raises:
        SettingsError: It is malformed, or names a task that cannot be played.
    """
    wanted = read_body("rollout request", RolloutRequest, body)
    sampling = SamplingConfig(
        max_tokens=wanted.max_tokens,
        temperature=wanted.temperature,
        token_filter=TokenFilter(top_p=wanted.top_p, top_k=wanted.top_k),
        seed=wanted.sampling_seed,
    )
    return read_tasks(wanted, access.setup), sampling


def _check_sampled(what: str, seat: str) -> None:
    """Reject a seat for which this server does not sample."""
    if is_scripted(check_seat(seat)):
        raise SettingsError(
            f"{what}: seat {seat!r} is a script, which needs no server; run it in the client, "
            f"or name adapter@version (player_0@7) or {BASE}."
        )
    if is_url(seat):
        raise SettingsError(
            f"{what}: seat {seat!r} is a model behind a URL, which can only play in games; send "
            "the request directly to that URL."
        )


def _check_number_of_scores(wanted: ScoreRequest) -> None:
    """Reject a request for too many scores."""
    num_scores = sum(len(prompt.replies) for prompt in wanted.prompts)
    if num_scores > MAX_SCORES:
        raise SettingsError(
            f"score request: {len(wanted.prompts)} prompts with {num_scores} replies; a request "
            f"may have at most {MAX_SCORES}. Split it into several requests."
        )


def parse_reply_request(body: bytes) -> ReplyRequest:
    """Return a request for one reply.

    Args:
        body: JSON.

    Raises:
        SettingsError: It is malformed, or its seat is not a model of this server.
    """
    wanted = read_body("reply request", ReplyRequest, body)
    _check_sampled("reply request", wanted.seat)
    return wanted
