"""Replies by OpenAI's chat API, for programs that know no other: ids and logprobs are in the
answer.

A conversation comes as texts and is rendered anew by the chat template, as with a memory of some
turns: earlier replies have no thoughts there, and their ids are the tokenizer's. Who needs the
sampled ones in the prompt asks `/reply/`."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.messages import MAX_TURNS, ChatRequest, EarlierTurn, ReplyRequest
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.routes_play import answered, check_owner, read_body
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings.refs import BASE, seat_adapter
from hanabi_grpo.types import Reply

_WHAT = "chat request"


def chat_routes(store: AdapterStore, scheduler: Scheduler, model: str) -> APIRouter:
    """Build the routes; `model` is the name of the base model."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        adapters = [f"{name}@{version}" for name, version in store.versions().items()]
        names = [model, BASE, *adapters, *store.versions(), *store.frozen.words()]
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}

    @router.post("/chat/completions")
    async def complete(request: Request) -> Response:
        asked = await asyncio.to_thread(read_body, _WHAT, ChatRequest, await request.body())
        wanted = read_chat(asked, scheduler.model, base=model, newest=store.versions())
        check_owner(store, request, [wanted.seat])

        async def sampled() -> Response:
            reply = await scheduler.reply(wanted)
            if reply.out_of_tokens:
                raise _too_long(wanted.max_tokens, scheduler.model)
            made = _completion(reply, scheduler.model.chat, asked.model)
            events = Response(_events(made), media_type="text/event-stream")
            return events if asked.stream else JSONResponse(made)

        return await answered(request, sampled())

    return router


def read_chat(
    asked: ChatRequest, model: Model, *, base: str, newest: Mapping[str, int]
) -> ReplyRequest:
    """Return what a chat request asks for; a SettingsError says what is wrong.

    `base` is the base model's name, and `newest` has the versions of adapters that are named
    without one."""
    seat = BASE if asked.model == base else asked.model
    if seat in newest:
        seat = f"{seat}@{newest[seat]}"
    if seat != BASE and seat_adapter(seat) is None:
        raise SettingsError(
            f"{_WHAT}: model={shown(seat)}: allowed are adapter@version (player_0@7), {BASE}, "
            f"{base}."
        )
    given = {asked.max_tokens, asked.max_completion_tokens} - {None}
    if len(given) != 1:
        raise SettingsError(
            f"{_WHAT}: max_tokens has {len(given)} values; send max_tokens or "
            "max_completion_tokens."
        )
    max_tokens = given.pop() or 0
    first, messages = asked.messages[0], asked.messages
    system, spoken = (first.content, messages[1:]) if first.role == "system" else ("", messages)
    roles = [message.role for message in spoken]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"] or len(roles) > 2 * MAX_TURNS:
        raise SettingsError(
            f"{_WHAT}: messages of {shown([message.role for message in messages])}; allowed are a "
            "system message or "
            f"none, then user and assistant in turn, a user last, at most {MAX_TURNS} of them."
        )
    turns, room = [], model.max_model_len
    for before, said in zip(spoken[:-1:2], spoken[1::2], strict=True):
        ids = tuple(model.chat.tokenizer.encode(said.content, add_special_tokens=False))
        room -= len(ids)
        if room < 0:
            raise _too_long(max_tokens, model)
        turns.append(EarlierTurn(prompt=before.content, reply_ids=ids))
    return ReplyRequest(
        seat=seat,
        system=system,
        turns=tuple(turns),
        fresh=True,
        prompt=spoken[-1].content,
        max_tokens=max_tokens,
        temperature=asked.temperature,
    )


def _too_long(max_tokens: int, model: Model) -> SettingsError:
    return SettingsError(
        f"{_WHAT}: the messages and max_tokens={max_tokens} are longer than the conversations of "
        "this server, "
        f"HANABI_MAX_MODEL_LEN={model.max_model_len}. Send less, or ask for less."
    )


def _completion(reply: Reply, chat: ChatFormat, model: str) -> dict[str, Any]:
    ids, words = (
        list(reply.reply_ids),
        [str(chat.tokenizer.decode([token])) for token in reply.reply_ids],
    )
    logprobs = [
        {
            "token": word,
            "logprob": logprob,
            "bytes": [*word.encode("utf-8", "replace")],
            "top_logprobs": [],
        }
        for word, logprob in zip(words, reply.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text},
        "finish_reason": "stop" if ids[-1] in chat.end_ids else "length",
        "logprobs": {"content": logprobs},
        # As vLLM's own server names them.
        "token_ids": ids,
    }
    prompt = len(reply.prompt_ids)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "prompt_token_ids": list(reply.prompt_ids),
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": len(ids),
            "total_tokens": prompt + len(ids),
        },
    }


def _events(made: dict[str, Any]) -> bytes:
    """Return a completion as server-sent events: the reply, then the usage."""
    [choice], head = made["choices"], {**made, "object": "chat.completion.chunk"}
    usage = head.pop("usage")
    piece = {
        **{key: value for key, value in choice.items() if key != "message"},
        "delta": choice["message"],
    }
    chunks = ({**head, "choices": [piece]}, {**head, "choices": [], "usage": usage})
    return b"".join(
        b"data: %s\n\n" % data for data in (*map(msgspec.json.encode, chunks), b"[DONE]")
    )
