"""Tokenizers of tiny models: words of the compact style, or byte pairs that span whole phrases."""

from collections.abc import Iterable, Sequence
from typing import Any

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
_SPECIAL = (PAD, START, END)
_UNKNOWN = "<unk>"
_THINK = ("<think>", "</think>")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML without a think block: the tiny model answers directly."""


TEXT_VOCABULARY = 4096
"""Most tokens of `build_text_tokenizer`; 256 of them are bytes."""
_LONGEST_TOKEN = 32
"""In bytes. Fits a phrase but not a line with several facts, so that facts stay separate."""


def build_tokenizer(vocabulary: Sequence[str]) -> Any:
    """Return a transformers tokenizer with these words.

    Text is split at whitespace, so line breaks of the chat template are not tokens; decoding joins
    the words with single spaces. A word outside the vocabulary becomes `<unk>`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    roles = ("system", "user", "assistant")
    # A dict keeps the order and drops duplicates.
    words = dict.fromkeys((*_SPECIAL, _UNKNOWN, *_THINK, *roles, *vocabulary))
    numbers = {word: number for number, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(numbers, unk_token=_UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _chat_tokenizer(core, unk_token=_UNKNOWN)


def build_text_tokenizer(texts: Iterable[str], size: int = TEXT_VOCABULARY) -> Any:
    """Return a transformers tokenizer for any text, trained on these texts.

    Byte-level byte-pair encoding as in Qwen and GPT-2, but pairs are merged across spaces within a
    line (SuperBPE, Liu et al., arXiv 2503.13423). Sentences that an environment repeats become a
    few tokens, and any other text is spelled out in bytes.

    Args:
        texts: Texts that players read and write.
        size: Most tokens, including the special ones.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split(Regex(r"\n"), behavior="merged_with_previous")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([lines, to_bytes])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(_THINK),
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=_LONGEST_TOKEN,
    )
    core.train_from_iterator(dict.fromkeys(texts), trainer)
    return _chat_tokenizer(core)


def _chat_tokenizer(core: Any, **special_tokens: str) -> Any:
    """Wrap a tokenizer of `tokenizers` as a transformers tokenizer with ChatML's tokens.

    Args:
        core: The tokenizer.
        **special_tokens: Further special tokens of transformers, such as `unk_token`.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    core.add_special_tokens([AddedToken(word, special=True) for word in _SPECIAL])
    core.add_tokens([AddedToken(word, special=False) for word in _THINK])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        **special_tokens,
    )
