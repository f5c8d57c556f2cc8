"""Replies through OpenAI's chat API, for programs that use it; ids and logprobs are included.

A conversation is sent as texts and rendered again by the chat template, as with a limited memory:
earlier replies have no thoughts, and their ids come from the tokenizer. A client that needs the
sampled ids in the prompt uses `/reply/`.
"""

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
    """Build the routes.

    Args:
        store: The adapters that requests may name.
        scheduler: Samples the replies.
        model: Name of the base model.
    """
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        versions = store.versions()
        names = [model, BASE]
        names += [f"{name}@{version}" for name, version in versions.items()]
        names += versions
        names += store.frozen.names()
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}

    @router.post("/chat/completions")
    async def complete(request: Request) -> Response:
        reading = scheduler.threads.requests(own=store.ownership.is_owner(request.headers))
        asked = await reading.run(read_body, _WHAT, ChatRequest, await request.body())
        seat = read_seat(asked, model, store.versions())
        served = scheduler.model_of(seat)
        # In a thread, since earlier replies are encoded.
        wanted = await reading.run(read_chat, asked, served, seat)
        check_owner(store, request, [wanted.seat])
        own = store.ownership.is_owner(request.headers)

        async def sample() -> Response:
            reply = await scheduler.reply(wanted, own=own)
            if reply.out_of_tokens:
                raise _too_long(wanted.max_tokens, served)
            completion = _completion(reply, served.chat, asked.model)
            if asked.stream:
                return Response(_events(completion), media_type="text/event-stream")
            return JSONResponse(completion)

        return await answered(request, sample())

    return router


def read_chat(asked: ChatRequest, model: Model, seat: str) -> ReplyRequest:
    """Convert a chat request to a reply request.

    Args:
        asked: The chat request.
        model: The base model that samples.
        seat: The seat reference, see `read_seat`.

    Raises:
        SettingsError: The request cannot be answered; the message says what is wrong.
    """
    max_tokens = _read_max_tokens(asked)
    system, messages = "", asked.messages
    if messages[0].role == "system":
        system = messages[0].content
        messages = messages[1:]
    roles = [message.role for message in messages]
    alternating = ["user", "assistant"] * (len(roles) // 2) + ["user"]
    if roles != alternating or len(roles) > 2 * MAX_TURNS:
        all_roles = [message.role for message in asked.messages]
        raise SettingsError(
            f"{_WHAT}: messages with roles {shown(all_roles)}; allowed are an optional system "
            "message, then user and assistant in turn, ending with user, at most "
            f"{MAX_TURNS} user messages."
        )
    turns = []
    room = model.max_model_len
    for prompt, reply in zip(messages[:-1:2], messages[1::2], strict=True):
        ids = tuple(model.chat.tokenizer.encode(reply.content, add_special_tokens=False))
        room -= len(ids)
        if room < 0:
            raise _too_long(max_tokens, model)
        # An empty reply, such as a space for a word tokenizer, consists only of its end token.
        turns.append(EarlierTurn(prompt=prompt.content, reply_ids=ids or (model.chat.eos_id,)))
    return ReplyRequest(
        seat=seat,
        system=system,
        turns=tuple(turns),
        fresh=True,
        prompt=messages[-1].content,
        max_tokens=max_tokens,
        temperature=asked.temperature,
        seed=asked.seed,
    )


def read_seat(asked: ChatRequest, base: str, newest: Mapping[str, int]) -> str:
    """Return the seat reference of the request's `model`.

    Args:
        asked: The chat request.
        base: Name of the base model.
        newest: Served version of each adapter, for adapters that are named without one.

    Raises:
        SettingsError: There is no such model here.
    """
    seat = BASE if asked.model == base else asked.model
    if seat in newest:
        seat = f"{seat}@{newest[seat]}"
    if seat != BASE and seat_adapter(seat) is None:
        raise SettingsError(
            f"{_WHAT}: model={shown(seat)}: allowed are adapter@version (player_0@7), {BASE}, "
            f"{base}."
        )
    return seat


def _read_max_tokens(asked: ChatRequest) -> int:
    """Return the token limit of the request, under either of OpenAI's two names."""
    limits = {asked.max_tokens, asked.max_completion_tokens} - {None}
    if len(limits) != 1:
        raise SettingsError(
            f"{_WHAT}: max_tokens has {len(limits)} values; send either max_tokens or "
            "max_completion_tokens."
        )
    return limits.pop() or 0


def _too_long(max_tokens: int, model: Model) -> SettingsError:
    return SettingsError(
        f"{_WHAT}: the messages and max_tokens={max_tokens} exceed this server's conversation "
        f"length, HANABI_MAX_MODEL_LEN={model.max_model_len}. Shorten the messages, or lower "
        "max_tokens."
    )


def _completion(reply: Reply, chat: ChatFormat, model: str) -> dict[str, Any]:
    """Return a reply as OpenAI's chat completion."""
    ids = list(reply.reply_ids)
    logprobs = []
    for token, logprob in zip(ids, reply.logprobs, strict=True):
        text = str(chat.tokenizer.decode([token]))
        logprobs.append(
            {
                "token": text,
                "logprob": logprob,
                "bytes": list(text.encode("utf-8", "replace")),
                "top_logprobs": [],
            }
        )
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text},
        "finish_reason": "stop" if ids[-1] in chat.end_ids else "length",
        "logprobs": {"content": logprobs},
        # The field name of vLLM's own server.
        "token_ids": ids,
    }
    num_prompt = len(reply.prompt_ids)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "prompt_token_ids": list(reply.prompt_ids),
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": len(ids),
            "total_tokens": num_prompt + len(ids),
        },
    }


def _events(completion: dict[str, Any]) -> bytes:
    """Return a completion as server-sent events: the reply in one piece, then the usage."""
    head = {**completion, "object": "chat.completion.chunk"}
    usage = head.pop("usage")
    [choice] = head.pop("choices")
    delta = dict(choice)
    delta["delta"] = delta.pop("message")
    chunks = [
        msgspec.json.encode({**head, "choices": [delta]}),
        msgspec.json.encode({**head, "choices": [], "usage": usage}),
        b"[DONE]",
    ]
    return b"".join(b"data: %s\n\n" % chunk for chunk in chunks)
