"""One reply outside any game of the server's: the conversation is rebuilt from its ids, sampled from, and forgotten."""

from jinja2 import TemplateError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.rollout.messages import ReplyRequest
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.seats import Sampler, ask_model
from hanabi_grpo.settings.refs import seat_adapter
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
        vocab_size: See `check_reply`.

    Returns:
        The reply; `out_of_tokens` and without tokens when it might not fit the budget.

    Raises:
        VersionError: The adapter is not held in that version; nothing was sampled.
        SettingsError: The model's chat template refuses the system message.
        NonFiniteError: A logprob is infinite or no number.
        ServerError: Ids that the model does not have, or logprobs that are not one for each of them.
    """
    named = seat_adapter(wanted.seat)
    async with store.lease(dict([named]) if named else {}) as leased:
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
        return await ask_model(
            sampler,
            chat,
            conversation,
            wanted.prompt,
            sampling=SamplingConfig(max_tokens=wanted.max_tokens, temperature=wanted.temperature),
            lora=held.lora if held else None,
            version=held.version if held else None,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
        )


def _rebuilt(wanted: ReplyRequest, chat: ChatFormat, max_model_len: int) -> Conversation | None:
    """Return the conversation before the prompt; None as soon as it is longer than any that can be answered."""
    conversation = Conversation(chat, wanted.system)
    for turn in wanted.turns:
        conversation.ask(turn.prompt)
        conversation.answer(list(turn.reply_ids))
        if len(conversation.ids) > max_model_len:
            return None
    return conversation
