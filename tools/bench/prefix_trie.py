"""How many prompt tokens an engine with an unbounded prefix cache would not have to compute."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.recording import Call, GameCalls

_Node = dict[int, "_Node"]


class PrefixTrie:
    """Token sequences that were computed already."""

    def __init__(self) -> None:
        """Start empty."""
        self._root: _Node = {}

    def add(self, ids: Iterable[int]) -> None:
        """Remember a sequence and all its beginnings."""
        node = self._root
        for token in ids:
            node = node.setdefault(token, {})

    def shared(self, ids: Sequence[int]) -> int:
        """Return the length of the longest beginning of `ids` that was added."""
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
    sharable: int
    """A perfect cache would have held them; the last token of a prompt never counts, its logits are
    needed.
    """
    sharable_in_blocks: int
    """The same, with whole blocks only: what the engine can reach."""
    cached: int
    """Those that the engine did not compute."""


def sharing(games: Sequence[GameCalls], *, block_size: int) -> Sharing:
    """Count prompt tokens against a trie per adapter.

    A prompt may share with all prompts that were asked for before it, and with replies that had
    come back; KV of a LoRA is of no use to another one. The last token of a reply is sampled, never
    computed.

    Args:
        games: Recorded calls with prompts.
        block_size: Tokens of one cache block.
    """
    # What happened first comes first; of equal times, an answer before a question.
    events: list[tuple[float, int, Call]] = []
    for call in (call for game in games for call in game):
        events += [(call.started, 1, call), (call.ended, 0, call)]
    tries: dict[str, PrefixTrie] = {}
    prompt = sharable = in_blocks = cached = 0
    for _, is_question, call in sorted(events, key=lambda event: event[:2]):
        trie = tries.setdefault(call.adapter, PrefixTrie())
        if is_question:
            shared = min(trie.shared(call.prompt_ids), len(call.prompt_ids) - 1)
            prompt += len(call.prompt_ids)
            sharable += shared
            in_blocks += shared // block_size * block_size
            cached += call.num_cached
            trie.add(call.prompt_ids)
        else:
            trie.add((*call.prompt_ids, *call.reply_ids[:-1]))
    return Sharing(prompt=prompt, sharable=sharable, sharable_in_blocks=in_blocks, cached=cached)
