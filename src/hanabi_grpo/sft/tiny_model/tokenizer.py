"""A word-level tokenizer whose vocabulary is everything that a compact conversation can hold."""

from collections.abc import Sequence
from typing import Any

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
_UNKNOWN = "<unk>"
_THINK = ("<think>", "</think>")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML without a think block: the tiny model answers at once."""


def build_tokenizer(vocabulary: Sequence[str]) -> Any:
    """Return a transformers tokenizer over these words.

    Text is split at whitespace, so line breaks of the chat template cost no token; decoding gives
    the words back with single spaces between them. A word outside the vocabulary becomes `<unk>`.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = (PAD, START, END)
    roles = ("system", "user", "assistant")
    # A dict keeps the order and drops what comes twice.
    words = dict.fromkeys((*special, _UNKNOWN, *_THINK, *roles, *vocabulary))
    numbers = {word: number for number, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(numbers, unk_token=_UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens([AddedToken(word, special=True) for word in special])
    core.add_tokens([AddedToken(word, special=False) for word in _THINK])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        unk_token=_UNKNOWN,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
