"""Routes that play games or sample one reply; requests are checked before anything is sampled.

The server of another model may have this one's as a partner behind a URL, so a reply can be had as from OpenAI's API.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.messages import (
    ChatRequest,
    DroppedRow,
    EarlierTurn,
    ReplyAnswer,
    ReplyRequest,
    RequestedTask,
    RolloutRequest,
    ScoreRequest,
    read_tasks,
)
from hanabi_grpo.runs.wire import read_struct
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.door import problem
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.pacing import in_slices
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.seats import PromptTokens
from hanabi_grpo.settings.refs import BASE, check_seat, is_frozen, is_scripted, is_url, seat_adapter
from hanabi_grpo.types import DroppedGame, Episode, Reply

_Request = TypeVar("_Request", RolloutRequest, ReplyRequest, ScoreRequest, ChatRequest)


def play_routes(store: AdapterStore, scheduler: Scheduler) -> APIRouter:
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
        check_owner(request, {seat for task in tasks for seat in task.seats})
        own = store.ownership.is_owner(request.headers)

        async def played() -> Response:
            prompts = PromptTokens()
            return await played_games(await scheduler.run(tasks, sampling, own=own, prompts=prompts), prompts)

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

    @router.post("/score/")
    async def score(request: Request) -> Response:
        wanted = await asyncio.to_thread(parse_score_request, await request.body())
        check_owner(request, [wanted.seat])

        async def scored() -> Response:
            return Response(msgspec.json.encode(await scheduler.score(wanted)), media_type="application/json")

        return await _answered(request, scored())

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = [BASE, *store.versions(), *store.frozen.words()]
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}

    @router.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        asked = _read("chat request", ChatRequest, await request.body())
        wanted = chat_reply(asked, store.versions(), scheduler.model.chat)
        check_owner(request, [wanted.seat])

        async def completed() -> Response:
            made = await scheduler.reply(wanted)
            if made.out_of_tokens:
                raise SettingsError("chat request: the conversation is full; see HANABI_MAX_MODEL_LEN of this server.")
            return JSONResponse(_completion(asked.model, made, scheduler.model.chat))

        return await _answered(request, completed())

    return router


def chat_reply(asked: ChatRequest, versions: Mapping[str, int], chat: ChatFormat) -> ReplyRequest:
    """Return a chat request as one for a reply; a SettingsError says what is wrong with it."""
    system = asked.messages[0].content if asked.messages[0].role == "system" else None
    rest = asked.messages[system is not None :]
    if [one.role for one in rest] != ["user", *["assistant", "user"] * (len(rest) // 2)]:
        raise SettingsError("chat request: messages: give system or not, then user and assistant in turn, user last.")
    seat = f"{asked.model}@{versions[asked.model]}" if asked.model in versions else asked.model
    _check_sampled("chat request", seat)

    def ids(text: str) -> tuple[int, ...]:
        return (*chat.tokenizer.encode(text, add_special_tokens=False), chat.eos_id)

    return ReplyRequest(
        seat=seat,
        system=system or "",
        turns=tuple(
            EarlierTurn(prompt=user.content, reply_ids=ids(said.content))
            for user, said in zip(rest[:-1:2], rest[1::2], strict=True)
        ),
        # Rendered anew each time: ids that were sampled are not known here.
        fresh=True,
        prompt=rest[-1].content,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
    )


def _completion(model: str, made: Reply, chat: ChatFormat) -> dict[str, Any]:
    ended, sizes = made.reply_ids[-1] in chat.end_ids, (len(made.prompt_ids), len(made.reply_ids))
    message = {"role": "assistant", "content": made.text}
    return {
        **{"id": "chatcmpl-0", "object": "chat.completion", "created": int(time.time()), "model": model},
        "choices": [{"index": 0, "message": message, "finish_reason": "stop" if ended else "length"}],
        "usage": {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)},
    }


async def _answered(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
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


async def played_games(groups: Iterable[Iterable[Episode | DroppedGame]], prompts: PromptTokens) -> Response:
    """Return the games of a request's tasks, per task in order of their numbers, as a `RolloutAnswer`.

    The answer has megabytes. A value is encoded in one go that keeps the interpreter's lock meanwhile, so a thread
    would not help: each game is encoded by itself.
    """
    pieces: list[bytes] = []
    dropped: list[DroppedRow] = []
    async for number, game in in_slices((number, game) for number, group in enumerate(groups) for game in group):
        if isinstance(game, DroppedGame):
            dropped.append(DroppedRow(task=number, game=game.game, reason=game.reason))
        else:
            pieces.append((b"," if pieces else b"") + msgspec.json.encode(game))
    tokens = b',"prompt_tokens":%d,"cached_tokens":%d}' % (prompts.given, prompts.cached)
    pieces = [b'{"episodes":[', *pieces, b'],"dropped":', msgspec.json.encode(dropped), tokens]
    length = str(sum(map(len, pieces)))
    return StreamingResponse(in_slices(pieces), media_type="application/json", headers={"content-length": length})


def _read(what: str, struct: type[_Request], body: bytes) -> _Request:
    try:
        return read_struct(struct, body)
    except ValueError as error:
        raise SettingsError(f"{what}: {error}.") from None


def parse_rollout_request(body: bytes) -> tuple[list[RequestedTask], SamplingConfig]:
    """Return the tasks of a rollout request, and how replies are sampled; a SettingsError says what is wrong where."""
    wanted = _read("rollout request", RolloutRequest, body)
    return read_tasks(wanted), SamplingConfig(max_tokens=wanted.max_tokens, temperature=wanted.temperature)


def _check_sampled(what: str, seat: str) -> None:
    if is_scripted(check_seat(seat)):
        raise SettingsError(
            f"{what}: seat {seat!r} is a script, which needs no server; play it where the game is, or ask for "
            f"adapter@version (player_0@7) or {BASE}."
        )
    if is_url(seat):
        raise SettingsError(f"{what}: seat {seat!r} is a model behind a URL, which only sits in games; ask it itself.")


def parse_score_request(body: bytes) -> ScoreRequest:
    """Return a request for the chances of replies; a SettingsError says what is wrong where."""
    wanted = _read("score request", ScoreRequest, body)
    _check_sampled("score request", wanted.seat)
    return wanted


def parse_reply_request(body: bytes, *, vocab_size: int) -> ReplyRequest:
    """Return a request for one reply of a model with so many ids; a SettingsError says what is wrong where."""
    wanted = _read("reply request", ReplyRequest, body)
    _check_sampled("reply request", wanted.seat)
    for number, turn in enumerate(wanted.turns):
        highest = max(turn.reply_ids)
        if highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids holds {highest}; this model has ids 0 to {vocab_size - 1}. "
                "Send the ids that this server sampled."
            )
    return wanted
