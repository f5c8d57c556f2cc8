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
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.vocabulary import check_vocabulary, game_words, unknown_words
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

VOCABULARY = compact_vocabulary(make_spec("laptop"))
TOKENIZER = build_tokenizer(VOCABULARY)
CHAT = ChatFormat.from_tokenizer(TOKENIZER)
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] "
    "}}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
"""As Qwen3: earlier thoughts are dropped, and none is asked for by a block that is closed
already.
"""
OPENING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)
"""As DeepSeek-R1: the prompt begins the thought, so that a reply that is cut within it has no tag
at all.
"""


def _thinking_tokenizer(template: str = THINKING_TEMPLATE) -> Any:
    tokenizer = build_tokenizer(VOCABULARY)
    tokenizer.chat_template = template
    return tokenizer


def test_the_format_is_read_from_the_template() -> None:
    assert (CHAT.eos, CHAT.glue, CHAT.tail) == (
        "<|im_end|>",
        "\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    )


@pytest.mark.parametrize(("thinking", "tail"), [(True, ""), (False, "<think>\n\n</think>\n\n")])
def test_a_template_that_drops_old_thoughts_gives_the_same_text_around_messages(
    thinking: bool, tail: str
) -> None:
    chat = ChatFormat.from_tokenizer(_thinking_tokenizer(), thinking=thinking)
    assert chat.tail == "<|im_end|>\n<|im_start|>assistant\n" + tail
    assert chat.hash != CHAT.hash


@given(
    st.lists(
        st.tuples(st.sampled_from(VOCABULARY), st.sampled_from(VOCABULARY)), min_size=1, max_size=6
    )
)
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
        assert (
            conversation.ids == before + added == TOKENIZER.encode(text, add_special_tokens=False)
        )
        conversation.answer([*TOKENIZER.encode(reply, add_special_tokens=False), CHAT.eos_id])
        messages.append({"role": "assistant", "content": reply})


@pytest.mark.parametrize(
    ("template", "thinking", "replies"),
    [
        (TOKENIZER.chat_template, False, ("R1", "R2")),
        (THINKING_TEMPLATE, False, ("R1", "R2")),
        (THINKING_TEMPLATE, True, ("<think> Y1 </think> R1", "<think> Y1")),
        (OPENING_TEMPLATE, True, ("Y1 </think> R1", "Y1")),
    ],
    ids=["plain", "thinking off", "thinking", "opened by the template"],
)
def test_a_window_is_the_template_of_its_last_turns_without_thoughts_and_the_own_reply_as_sampled(
    template: str, thinking: bool, replies: tuple[str, str]
) -> None:
    chat = ChatFormat.from_tokenizer(tokenizer := _thinking_tokenizer(template), thinking=thinking)
    # The second reply is cut: of a thought that did not end nothing was said.
    said = ["R1", "" if thinking else "R2"]
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in replies)
    for window in (1, 2, 3, 9):
        windowed = Conversation(chat, "life1", window)
        for user, ids in (("Play", [*first, chat.eos_id]), ("Discard", second)):
            prompt = windowed.ask(user)
            windowed.answer(ids)
            assert windowed.ids == [*prompt, *ids], "training reads what was sampled"
        turns = list(zip(("Play", "Discard"), said, strict=True))[max(0, 3 - window) :]
        messages = [{"role": "system", "content": "life1"}]
        for user, answer in turns:
            messages += [
                {"role": "user", "content": user},
                {"role": "assistant", "content": answer},
            ]
        messages.append({"role": "user", "content": "Hint"})
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
        text = tokenizer.apply_chat_template(messages, **options)
        assert (
            windowed.ask("Hint") == windowed.ids == tokenizer.encode(text, add_special_tokens=False)
        )
        assert not thinking or "Y1" not in text
    growing = Conversation(chat, "life1")
    growing.ask("Play")
    growing.answer([*first, chat.eos_id])
    before = list(growing.ids)
    growing.ask("Discard")
    assert growing.ids[: len(before)] == before and before[-len(first) - 1 :] == [
        *first,
        chat.eos_id,
    ]


def test_a_reply_that_was_cut_is_closed_before_the_next_message() -> None:
    closed, cut = Conversation(CHAT, ""), Conversation(CHAT, "")
    reply = TOKENIZER.encode("Play 0", add_special_tokens=False)
    for conversation, said in ((closed, [*reply, CHAT.eos_id]), (cut, reply)):
        conversation.ask("life1")
        conversation.answer(said)
    assert cut.ask("life1") == [CHAT.eos_id, *closed.ask("life1")]
    assert cut.ids == closed.ids


@pytest.mark.parametrize("listed", [[2, 0], 0, None, "file"])
def test_every_token_that_ends_a_reply_for_the_model_is_left_out_of_its_text(
    listed: object, tmp_path: Path
) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    if listed != "file":
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    chat = ChatFormat.from_tokenizer(PreTrainedTokenizerFast.from_pretrained(tmp_path))
    play = TOKENIZER.encode("Play 0", add_special_tokens=False)
    pad = TOKENIZER.pad_token_id
    assert (CHAT.eos_id, pad) == (2, 0)
    stops = listed in ([2, 0], 0)
    assert chat.end_ids == ({2, 0} if stops else {2})
    assert chat.decode([*play, 2]) == "Play 0"
    assert chat.decode([*play, 0]) == ("Play 0" if stops else f"Play 0 {TOKENIZER.pad_token}")
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


def test_a_model_knows_its_own_board_and_misses_exactly_what_another_one_has_more() -> None:
    expected = {hanabi("laptop"): set(), hanabi("marshal-mini"): {"life2", "life3"}}
    assert {
        setup: set(unknown_words(game_words(setup), TOKENIZER)) for setup in expected
    } == expected
    assert {"life2", "life3", "left3"} < set(
        unknown_words(game_words(hanabi("mini", 3)), TOKENIZER)
    )


def test_every_board_is_looked_at_and_the_message_has_the_command_that_helps() -> None:
    with pytest.raises(SettingsError) as caught:
        check_vocabulary(
            (hanabi("laptop"), hanabi("marshal-mini"), hanabi("full")), TOKENIZER, "data/tiny-model"
        )
    text = str(caught.value)
    words = len(game_words(hanabi("marshal-mini")))
    assert text.startswith(
        f"MODEL=data/tiny-model: its tokenizer does not know 2 of {words} words of marshal-mini "
        "(compact): "
    )
    assert "words of full (compact): " in text
    assert text.endswith(
        "hanabi-grpo tiny-model --preset laptop --preset marshal-mini --preset full --players 2, "
        "and set "
        "MODEL=outputs/tiny-laptop-marshal-mini-full; or choose another MODEL."
    )


def test_another_environments_words_and_readable_text_are_too_much_for_a_tokenizer_of_compact_words() -> (
    None
):
    with pytest.raises(
        SettingsError,
        match=r"words of laptop \(full\).*With HANABI_OBSERVATION=compact, make a model",
    ):
        check_vocabulary((hanabi("laptop", observation="full"),), TOKENIZER, "tiny")
    with pytest.raises(
        SettingsError,
        match=r"of kuhn: .*tiny-model --env kuhn --preset kuhn, and .*outputs/tiny-kuhn;",
    ):
        check_vocabulary((registry.setup("kuhn", {}),), TOKENIZER, "tiny")
    check_vocabulary(
        (registry.setup("kuhn", {}),),
        build_tokenizer(game_words(registry.setup("kuhn", {}))),
        "tiny",
    )
