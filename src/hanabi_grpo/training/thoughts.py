"""HANABI_TRAIN_THOUGHTS=0: the tokens of thoughts carry no loss.

They stay in the conversation, so what a player does is still conditioned on them, and in the
mismatch check. Only what is said outside <think>…</think>, and the end of the reply, is trained.
"""

from collections.abc import Callable, Sequence

from hanabi_grpo.envs.texts import think_spans
from hanabi_grpo.types import Turn


def trained_tokens(pieces: Sequence[str]) -> list[bool]:
    """Return for each token of a reply whether it carries loss.

    A token is of a thought where any of its characters is, tags included: a token that ends a tag
    and begins an answer is still the thought's.

    Args:
        pieces: The text of each token.

    Example:
        trained_tokens(["<think>", "Hm", "</think>", "Play", " 0"])
        == [False, False, False, True, True]
    """
    spans = think_spans("".join(pieces))
    trained = []
    start = 0
    for piece in pieces:
        end = start + len(piece)
        is_thought = any(start < last and first < end for first, last in spans)
        trained.append(not is_thought)
        start = end
    return trained


class WithoutThoughts:
    """Says of a turn's tokens which carry loss, by the text of the tokens."""

    def __init__(self, token_text: Callable[[int], str]) -> None:
        """Take what a token reads.

        Args:
            token_text: (token id) -> its text, special tokens included.
        """
        self._token_text = token_text
        self._known: dict[int, str] = {}

    def __call__(self, turn: Turn) -> list[bool]:
        """Return for each token of the turn's reply whether it carries loss."""
        return trained_tokens([self._text(token) for token in turn.reply_ids])

    def _text(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._token_text(token)
        return self._known[token]
