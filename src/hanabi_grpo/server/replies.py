"""One reply outside any game of the server's: the conversation is rebuilt from its ids, sampled from, and forgotten."""

import math

from jinja2 import TemplateError

from hanabi_grpo.errors import NonFiniteError, ServerError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.reply_request import ReplyRequest
from hanabi_grpo.server.seats import Sampler, ask_model
from hanabi_grpo.types import Reply


async def answer_request(
    wanted: ReplyRequest,
    *,
    sampler: Sampler,
    chat: ChatFormat,
    store: AdapterStore,
    max_model_len: int,
    vocab_size: int | None,
) -> Reply:
    """Sample the reply that a request asks for.

    Args:
        wanted: The checked request.
        sampler: The engine.
        chat: How conversations become ids; the same as for games, so the same conversation has the same ids.
        store: Holds the adapter.
        max_model_len: Token budget of a conversation, the reply included.
        vocab_size: See `parse_reply_request`.

    Returns:
        The reply; `out_of_tokens` and without tokens when it might not fit the budget.

    Raises:
        VersionError: The adapter is not held in that version; nothing was sampled.
        SettingsError: The model's chat template refuses the system message.
        NonFiniteError: A logprob is infinite or no number.
        ServerError: Ids that the model does not have, or logprobs that are not one for each of them.
    """
    async with store.lease(wanted.adapters) as leased:
        try:
            conversation = _rebuilt(wanted, chat, max_model_len)
        except TemplateError as error:
            raise SettingsError(
                f"reply request: the chat template of this server's model refuses the conversation ({error}); send "
                'system="" and put its text into the first prompt.'
            ) from error
        if conversation is None:
            return Reply(text="", prompt=wanted.prompt, out_of_tokens=True)
        held = next(iter(leased.values()), None)
        reply = await ask_model(
            sampler,
            chat,
            conversation,
            wanted.prompt,
            sampling=wanted.sampling,
            lora=held.lora if held else None,
            version=held.version if held else None,
            max_model_len=max_model_len,
        )
    check_reply(reply, vocab_size=vocab_size)
    return reply


def check_reply(reply: Reply, *, vocab_size: int | None) -> None:
    """Refuse a reply whose numbers cannot be used, by the rules that `check_episode` has for a turn.

    Raises:
        NonFiniteError: A logprob is infinite or no number.
        ServerError: Ids that the model does not have, or logprobs that are not one for each of them.
    """
    if len(reply.logprobs) != len(reply.reply_ids):
        raise ServerError(f"reply: {len(reply.logprobs)} logprobs for {len(reply.reply_ids)} ids; each needs its own.")
    for place, value in enumerate(reply.logprobs):
        if not math.isfinite(value):
            raise NonFiniteError(
                f"reply: logprob {place} is {value}; a logprob must be finite. Do the adapter and the base model hold "
                "finite weights?"
            )
    for token in (*reply.prompt_ids, *reply.reply_ids):
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            raise ServerError(
                f"reply: id {token}; allowed are 0 to {'…' if vocab_size is None else vocab_size - 1}. Do tokenizer "
                "and model belong together?"
            )


def _rebuilt(wanted: ReplyRequest, chat: ChatFormat, max_model_len: int) -> Conversation | None:
    """Return the conversation before the prompt; None as soon as it is longer than any that can be answered."""
    conversation = Conversation(chat, wanted.system)
    for turn in wanted.turns:
        conversation.ask(turn.prompt)
        conversation.answer(turn.reply_ids)
        if len(conversation.ids) > max_model_len:
            return None
    return conversation
