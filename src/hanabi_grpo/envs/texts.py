"""Replies as people read them: thoughts and answer separated, and the rewards they earned."""

import re
from collections.abc import Mapping

OPEN_THINK = "<think>"
"""The tag that begins a thought."""
_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)
_MARKUP = re.compile(
    r"<(?=[|\uff5c/!\w])"
    r"|\[(?=/?(?:[A-Z]{2}[A-Z_]*[0-9]*|[gs]MASK|(?:control|extra_id)_[0-9]+|unused[0-9]+)\])"
)
"""Start of a tag that a chat template or a tokenizer might take for a special token, e.g. `<s>`,
`[INST]`, `[IMG_2]`, `[gMASK]`, `[control_8]` or `[unused1]`; `[A]` and `[1]` are ordinary text."""


def split_reply(reply: str) -> tuple[str, str]:
    """Return a reply's thoughts and the rest of its text, both stripped."""
    thoughts, outside, _ = think_parts(reply)
    return _join_stripped(thoughts), _join_stripped(outside)


def has_thought(reply: str) -> bool:
    """Return whether a reply has a thought that is not empty."""
    return bool(split_reply(reply)[0])


def before_answer(reply: str) -> str:
    """Return what a reply has before its answer: thoughts with their tags, and white space.

    Returns:
        The text; "" if there is no think tag, or if the answer is not the end of the reply.

    Example:
        before_answer("<think> fits </think> Play 0") == "<think> fits </think> "
    """
    text = reply.rstrip()
    _, answer = split_reply(text)
    if _THINK_TAG.search(text) is None or not answer or not text.endswith(answer):
        return ""
    return text.removesuffix(answer)


def public_text(reply: str) -> str | None:
    """Return what a reply says outside its thoughts, or None if a thought was cut off.

    Other players read it as part of their prompts, so it must not contain special tokens:
    `<|im_end|>` becomes `< |im_end|>`.
    """
    _, parts, is_cut_off = think_parts(reply)
    if is_cut_off:
        return None
    stripped = [part.strip() for part in parts]
    return without_markup("\n".join(filter(None, stripped)))


def without_markup(text: str) -> str:
    """Return a text in which nothing is a special token, so that it can be part of a prompt.

    Example:
        without_markup("<|im_end|>") == "< |im_end|>"
    """
    return _MARKUP.sub(r"\g<0> ", text)


def quote(text: str) -> str:
    r"""Return a text with a mark before each line, as Markdown marks quotations.

    No line of what a player wrote can then be taken for one of the prompt that quotes it. Empty
    lines are left out.

    Example:
        quote("I add.\n\nAnswer: 7") == "> I add.\n> Answer: 7"
    """
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(f"> {line}" for line in lines if line)


def think_parts(reply: str) -> tuple[list[str], list[str], bool]:
    """Return the pieces of a reply inside and outside think blocks.

    A closing tag without an opening one ends a thought that the prompt opened; a thought that was
    cut off has no closing tag.

    Returns:
        The pieces inside think blocks, those outside, and whether the last block is open.

    Example:
        think_parts("<think>a</think>b<think>c") == (["a", "c"], ["", "b"], True)
    """
    thoughts: list[str] = []
    outside: list[str] = []
    start = 0
    is_thinking = False
    for tag in _THINK_TAG.finditer(reply):
        text = reply[start : tag.start()]
        is_closing = tag.group(1) == "/"
        if is_thinking:
            thoughts.append(text)
        elif is_closing:
            # The prompt opened the thought: everything so far belongs to it.
            thoughts += [*outside, text]
            outside = []
        else:
            outside.append(text)
        start = tag.end()
        is_thinking = not is_closing
    rest = reply[start:]
    if is_thinking:
        thoughts.append(rest)
    else:
        outside.append(rest)
    return thoughts, outside, is_thinking


def think_spans(reply: str) -> list[tuple[int, int]]:
    """Return the positions of a reply's thoughts, as read by `think_parts`, tags included.

    Returns:
        (start, end) of each thought, in order; the end is exclusive.

    Example:
        think_spans("<think>a</think>b<think>c") == [(0, 16), (17, 25)]
    """
    spans: list[tuple[int, int]] = []
    start = 0
    is_thinking = False
    for tag in _THINK_TAG.finditer(reply):
        is_closing = tag.group(1) == "/"
        if is_thinking:
            spans.append((start, tag.end()))
        elif is_closing:
            # The prompt opened the thought: everything so far belongs to it.
            spans = [(0, tag.end())]
        start = tag.start() if not is_thinking else tag.end()
        is_thinking = not is_closing
    if is_thinking and start < len(reply):
        spans.append((start, len(reply)))
    return spans


def earned(rewards: Mapping[str, float]) -> str:
    """Return reward parts as text, e.g. "score +1, illegal -0.5"."""
    return ", ".join(f"{part} {signed(value)}" for part, value in rewards.items())


def signed(value: float) -> str:
    """Return a number with its sign and without trailing zeros, e.g. "+0.5"."""
    return f"{value:+.2f}".rstrip("0").rstrip(".")


def _join_stripped(parts: list[str]) -> str:
    stripped = [part.strip() for part in parts]
    return "\n".join(filter(None, stripped))
