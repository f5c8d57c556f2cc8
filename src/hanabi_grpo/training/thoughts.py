"""HANABI_TRAIN_THOUGHTS=0: the tokens of thoughts carry no loss.

They stay in the conversation, so a player's actions are still conditioned on them, and in the
mismatch check. Only the tokens outside <think>…</think>, and the end of the reply, are trained.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hanabi_grpo.envs.texts import OPEN_THINK, think_spans
from hanabi_grpo.types import Turn

TokenText: TypeAlias = Callable[[int], str]
"""(token id) -> its text, special tokens included."""
TrainedTokens: TypeAlias = Callable[[Turn], Sequence[bool]]
"""(turn) -> for each token of its reply, whether it carries loss."""


def all_tokens(turn: Turn) -> list[bool]:
    """Let every token of a reply carry loss."""
    return [True] * len(turn.reply_ids)


def trained_tokens(pieces: Sequence[str], *, is_in_thought: bool = False) -> list[bool]:
    """Return for each token of a reply whether it carries loss.

    A token belongs to a thought if any of its characters does, tags included: a token that ends a
    tag and begins an answer still belongs to the thought.

    Args:
        pieces: The text of each token.
        is_in_thought: Whether the prompt ends with the tag that opens a thought.

    Example:
        trained_tokens(["<think>", "Hm", "</think>", "Play", " 0"])
        == [False, False, False, True, True]
    """
    opening = OPEN_THINK if is_in_thought else ""
    spans = think_spans(opening + "".join(pieces))
    trained = []
    start = len(opening)
    for piece in pieces:
        end = start + len(piece)
        is_thought = any(start < last and first < end for first, last in spans)
        trained.append(not is_thought)
        start = end
    return trained


class WithoutThoughts:
    """Tells which tokens of a turn carry loss, based on the tokens' text."""

    def __init__(self, token_text: TokenText, texts: Mapping[str, TokenText] | None = None) -> None:
        """Take the functions that return a token's text.

        Args:
            token_text: (token id) -> its text, special tokens included.
            texts: The same function for each player whose base model has another vocabulary.
        """
        self._first = functools.cache(token_text)
        self._texts = {player: functools.cache(text) for player, text in (texts or {}).items()}

    def __call__(self, turn: Turn) -> list[bool]:
        """Return for each token of the turn's reply whether it carries loss."""
        return _trained_of(turn, self._first)

    def in_seats(self, players: Sequence[str]) -> Callable[[Turn], list[bool]]:
        """Return this function for turns of games in which these players hold the seats."""
        if not self._texts:
            return self

        def trained(turn: Turn) -> list[bool]:
            text = self._texts.get(players[turn.player], self._first)
            return _trained_of(turn, text)

        return trained


def _trained_of(turn: Turn, token_text: TokenText) -> list[bool]:
    pieces = [token_text(token) for token in turn.reply_ids]
    # The text of a reply begins with the tag wherever the chat template has written it.
    begins_with_tag = turn.reply.startswith(OPEN_THINK)
    is_in_thought = begins_with_tag and not "".join(pieces).startswith(OPEN_THINK)
    return trained_tokens(pieces, is_in_thought=is_in_thought)


def text_of(tokenizer: Any) -> TokenText:
    """Return the function that returns the text of a tokenizer's tokens."""

    def text(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False))

    return text
