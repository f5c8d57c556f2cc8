"""Conversations as ids that only grow, and whether a tokenizer knows the words of a game."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.envs.texts import public_text, split_reply
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, _encode_opening, _encode_reply
from hanabi_grpo.rollout.vocabulary import check_vocabulary, game_words, unknown_words
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

VOCABULARY = compact_vocabulary(make_spec("laptop"))
TOKENIZER = build_tokenizer(VOCABULARY)
CHAT = ChatFormat.from_tokenizer(TOKENIZER)
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
"""As Qwen3: earlier thoughts are dropped, and a closed block asks for none."""
OPENING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)
"""As DeepSeek-R1: the prompt begins the thought, so that a reply cut within it has no tag."""


def tokenizer_of(template: str) -> Any:
    tokenizer = build_tokenizer(VOCABULARY)
    tokenizer.chat_template = template
    return tokenizer


def encode(text: str) -> list[int]:
    return [*TOKENIZER.encode(text, add_special_tokens=False)]


def test_the_format_is_read_from_the_template() -> None:
    assert CHAT.eos == "<|im_end|>"
    assert CHAT.glue == "\n<|im_start|>user\n"
    assert CHAT.tail == "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("thinking", "tail"), [(True, ""), (False, "<think>\n\n</think>\n\n")])
def test_a_template_that_drops_old_thoughts_gives_the_same_text_around_messages(
    thinking: bool, tail: str
) -> None:
    chat = ChatFormat.from_tokenizer(tokenizer_of(THINKING_TEMPLATE), thinking=thinking)
    assert chat.tail == "<|im_end|>\n<|im_start|>assistant\n" + tail
    assert chat.hash != CHAT.hash


WORDS = st.sampled_from(VOCABULARY)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6))
def test_a_growing_conversation_equals_the_template_rendered_at_once(
    turns: list[tuple[str, str]],
) -> None:
    conversation = Conversation(CHAT, "")
    messages = []
    for user, reply in turns:
        before = list(conversation.ids)
        added = conversation.ask(user)
        messages.append({"role": "user", "content": user})
        text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert conversation.ids == before + added
        assert conversation.ids == encode(text)
        conversation.answer([*encode(reply), CHAT.eos_id])
        messages.append({"role": "assistant", "content": reply})


in_every_format = pytest.mark.parametrize(
    ("template", "thinking", "replies"),
    [
        (TOKENIZER.chat_template, False, ("R1", "R2")),
        (THINKING_TEMPLATE, False, ("R1", "R2")),
        (THINKING_TEMPLATE, True, ("<think> Y1 </think> R1", "<think> Y1")),
        (OPENING_TEMPLATE, True, ("Y1 </think> R1", "Y1")),
    ],
    ids=["plain", "thinking off", "thinking", "opened by the template"],
)


@in_every_format
def test_a_memory_of_some_turns_is_the_template_of_the_last_ones_without_their_thoughts(
    template: str, thinking: bool, replies: tuple[str, str]
) -> None:
    tokenizer = tokenizer_of(template)
    chat = ChatFormat.from_tokenizer(tokenizer, thinking=thinking)
    first, second = map(encode, replies)
    # The second reply is cut: of a thought that did not end nothing was said.
    past = [("Play", "R1"), ("Discard", "" if thinking else "R2")]
    for memory in (1, 2, 3, 9):
        conversation = Conversation(chat, "life1", memory)
        for message, reply_ids in (("Play", [*first, chat.eos_id]), ("Discard", second)):
            prompt = conversation.ask(message)
            conversation.answer(reply_ids)
            assert conversation.ids == [*prompt, *reply_ids], "training reads what was sampled"
        messages = [{"role": "system", "content": "life1"}]
        for message, reply in past[max(0, 3 - memory) :]:
            messages.append({"role": "user", "content": message})
            messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": "Hint"})
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert conversation.ask("Hint") == encode(text)
        assert conversation.ids == encode(text)
        if thinking:
            assert "Y1" not in text


@in_every_format
def test_a_conversation_that_remembers_all_keeps_its_replies_as_sampled_and_only_grows(
    template: str, thinking: bool, replies: tuple[str, str]
) -> None:
    chat = ChatFormat.from_tokenizer(tokenizer_of(template), thinking=thinking)
    reply = [*encode(replies[0]), chat.eos_id]
    growing = Conversation(chat, "life1")
    growing.ask("Play")
    growing.answer(reply)
    before = list(growing.ids)
    growing.ask("Discard")
    assert growing.ids[: len(before)] == before
    assert before[-len(reply) :] == reply


def test_a_thought_that_the_template_opens_is_part_of_the_replys_text() -> None:
    chat = ChatFormat.from_tokenizer(tokenizer_of(OPENING_TEMPLATE), thinking=True)
    assert chat.opens_thought and not CHAT.opens_thought
    cut = chat.decode(encode("Y1 Y2"))
    assert split_reply(cut) == ("Y1 Y2", "")
    assert public_text(cut) is None
    # A second opening tag ends nothing.
    assert split_reply(chat.decode(encode("Y1 <think> Y2 </think> R1"))) == ("Y1\nY2", "R1")
    # A given reply continues the thought, or ends it at once.
    assert chat.said("<think> Y1 </think> R1") == (*encode("Y1 </think> R1"), chat.eos_id)
    assert chat.said("R1") == (*encode("</think> R1"), chat.eos_id)
    for given_reply in ("<think> Y1 </think> R1", "R1"):
        assert chat.spoken([*chat.said(given_reply)]) == "R1"


def test_a_reply_that_was_cut_is_closed_before_the_next_message() -> None:
    reply = encode("Play 0")
    closed = Conversation(CHAT, "")
    closed.ask("life1")
    closed.answer([*reply, CHAT.eos_id])
    cut = Conversation(CHAT, "")
    cut.ask("life1")
    cut.answer(reply)
    assert cut.ask("life1") == [CHAT.eos_id, *closed.ask("life1")]
    assert cut.ids == closed.ids


@pytest.mark.parametrize(
    ("listed", "end_ids"), [([2, 0], {2, 0}), (0, {2, 0}), (None, {2}), ("no file", {2})]
)
def test_every_token_that_ends_a_reply_for_the_model_is_left_out_of_its_text(
    listed: object, end_ids: set[int], tmp_path: Path
) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    if listed != "no file":
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    chat = ChatFormat.from_tokenizer(PreTrainedTokenizerFast.from_pretrained(tmp_path))
    play = encode("Play 0")
    assert (CHAT.eos_id, TOKENIZER.pad_token_id) == (2, 0)
    assert chat.end_ids == end_ids
    assert chat.decode([*play, 2]) == "Play 0"
    pad_is_left_out = 0 in end_ids
    assert chat.decode([*play, 0]) == (
        "Play 0" if pad_is_left_out else f"Play 0 {TOKENIZER.pad_token}"
    )
    # In the conversation the reply stays what was sampled, and the message is closed behind it.
    assert chat.follow(0, "life1")[0] == 2


def test_a_tokenizer_that_cannot_hold_a_conversation_is_refused() -> None:
    tokenizer = build_tokenizer(VOCABULARY)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    with pytest.raises(SettingsError, match="not with the eos token"):
        ChatFormat.from_tokenizer(tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(SettingsError, match="no chat template"):
        ChatFormat.from_tokenizer(tokenizer)


def hanabi(preset: str, players: int = 2, observation: str = "compact") -> Setup[Any]:
    return registry.setup(
        "hanabi", {"preset": preset, "players": players, "observation": observation}
    )


def unknown_of(setup: Setup[Any]) -> set[str]:
    """Words of a game that the tokenizer of the smallest board does not know."""
    return set(unknown_words(game_words(setup), TOKENIZER))


def test_a_model_knows_its_own_board_and_misses_exactly_what_another_one_has_more() -> None:
    assert unknown_of(hanabi("laptop")) == set()
    assert unknown_of(hanabi("marshal-mini")) == {"life2", "life3"}
    assert unknown_of(hanabi("mini", 3)) > {"life2", "life3", "left3"}


def test_every_board_is_looked_at_and_the_message_has_the_command_that_helps() -> None:
    boards = (hanabi("laptop"), hanabi("marshal-mini"), hanabi("full"))
    with pytest.raises(SettingsError) as caught:
        check_vocabulary(boards, TOKENIZER, "data/tiny-model")
    text = str(caught.value)
    num_words = len(game_words(hanabi("marshal-mini")))
    assert text.startswith(
        f"MODEL=data/tiny-model: its tokenizer does not know 2 of {num_words} words of "
        "marshal-mini (compact): "
    )
    assert "words of full (compact): " in text
    assert text.endswith(
        "hanabi-grpo tiny-model --preset laptop --preset marshal-mini --preset full --players 2, "
        "and set MODEL=outputs/tiny-laptop-marshal-mini-full; or choose another MODEL."
    )


def test_readable_text_is_too_much_for_a_tokenizer_of_compact_words() -> None:
    message = r"words of laptop \(full\).*With HANABI_OBSERVATION=compact, make a model"
    with pytest.raises(SettingsError, match=message):
        check_vocabulary((hanabi("laptop", observation="full"),), TOKENIZER, "tiny")


def test_the_model_that_is_in_use_is_not_proposed_again() -> None:
    with pytest.raises(SettingsError) as caught:
        check_vocabulary((hanabi("laptop", observation="full"),), TOKENIZER, "data/tiny-model")
    text = str(caught.value)
    assert "MODEL=data/tiny-model: its tokenizer does not know" in text
    assert "MODEL=Qwen/Qwen3-0.6B" in text
    assert "tiny-model --preset" not in text


def test_another_environment_needs_a_tokenizer_of_its_own_words() -> None:
    kuhn = registry.setup("kuhn", {})
    message = r"of kuhn: .*tiny-model --env kuhn --preset kuhn, and .*outputs/tiny-kuhn;"
    with pytest.raises(SettingsError, match=message):
        check_vocabulary((kuhn,), TOKENIZER, "tiny")
    check_vocabulary((kuhn,), build_tokenizer(game_words(kuhn)), "tiny")


def test_long_texts_are_not_kept_in_memory() -> None:
    sizes = (_encode_reply.cache_info().currsize, _encode_opening.cache_info().currsize)
    CHAT.said("Play 0 " * 1000)
    CHAT.open("Play 0 " * 1000, "Play 1 " * 2000)
    assert (_encode_reply.cache_info().currsize, _encode_opening.cache_info().currsize) == sizes
