"""How many prompt tokens an engine with an unbounded prefix cache would not have to compute."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.recording import Call, GameCalls

_Node = dict[int, "_Node"]


class PrefixTrie:
    """Token sequences that were already computed."""

    def __init__(self) -> None:
        """Start empty."""
        self._root: _Node = {}

    def add(self, ids: Iterable[int]) -> None:
        """Remember a sequence and all its prefixes."""
        node = self._root
        for token in ids:
            node = node.setdefault(token, {})

    def shared(self, ids: Sequence[int]) -> int:
        """Return the length of the longest prefix of `ids` that was added."""
        node = self._root
        for count, token in enumerate(ids):
            if token not in node:
                return count
            node = node[token]
        return len(ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Prompt tokens of some games."""

    prompt: int
    """All prompt tokens."""
    sharable: int
    """Tokens that a perfect cache would have held.

    The last token of a prompt never counts, because its logits are needed."""
    sharable_in_blocks: int
    """The same with whole blocks only, which the engine can reach."""
    cached: int
    """Tokens that the engine did not compute."""


def sharing(games: Sequence[GameCalls], *, block_size: int) -> Sharing:
    """Count prompt tokens against a trie per adapter.

    A prompt may share with all prompts that were sent before it, and with replies that had been
    received. Adapters cannot share each other's KV cache. The last token of a reply is sampled but
    never computed.

    Args:
        games: Recorded calls with prompts.
        block_size: Tokens of one cache block.
    """
    tries: dict[str, PrefixTrie] = {}
    prompt = 0
    sharable = 0
    in_blocks = 0
    cached = 0
    for event in _events_in_order(games):
        call = event.call
        trie = tries.setdefault(call.adapter, PrefixTrie())
        if event.is_question:
            shared = min(trie.shared(call.prompt_ids), len(call.prompt_ids) - 1)
            num_blocks = shared // block_size
            prompt += len(call.prompt_ids)
            sharable += shared
            in_blocks += num_blocks * block_size
            cached += call.num_cached
            trie.add(call.prompt_ids)
        else:
            trie.add((*call.prompt_ids, *call.reply_ids[:-1]))
    return Sharing(prompt=prompt, sharable=sharable, sharable_in_blocks=in_blocks, cached=cached)


class _Event(NamedTuple):
    """A call is sent, or answered."""

    time: float
    is_question: bool
    call: Call


def _events_in_order(games: Sequence[GameCalls]) -> list[_Event]:
    """Return the events in order of time; at equal times, an answer comes before a request."""
    events = []
    for game in games:
        for call in game:
            events.append(_Event(call.started, True, call))
            events.append(_Event(call.ended, False, call))
    return sorted(events, key=lambda event: (event.time, event.is_question))
