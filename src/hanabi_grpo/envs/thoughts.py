"""How much players think before they act, and whether their thoughts depend on what they read."""

from collections.abc import Sequence
from statistics import fmean

from hanabi_grpo.envs.texts import think_parts
from hanabi_grpo.types import Episode


def thought_figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the figures of some episodes; nothing where no reply has a thought.

    `thoughts/turn_share` is the share of replies with a thought. Over those: `thoughts/words`, the
    mean length in words; `thoughts/cut_share`, the share that the limit of a reply cut off; and
    `thoughts/per_prompt`, different thoughts divided by different prompts. Where it falls towards
    0, players write the same template whatever they read, and rewards no longer depend on what is
    thought; RAGEN describes such a collapse (arXiv 2504.20073).
    """
    num_replies = 0
    num_cut = 0
    lengths: list[int] = []
    thoughts: set[str] = set()
    prompts: set[str] = set()
    for episode in episodes:
        for turn in episode.turns:
            num_replies += 1
            pieces, _, is_cut = think_parts(turn.reply)
            thought = "\n".join(pieces).strip()
            if not thought:
                continue
            num_cut += is_cut
            lengths.append(len(thought.split()))
            thoughts.add(thought)
            prompts.add(turn.prompt)
    if not lengths:
        return {}
    return {
        "thoughts/turn_share": len(lengths) / num_replies,
        "thoughts/words": fmean(lengths),
        "thoughts/cut_share": num_cut / len(lengths),
        "thoughts/per_prompt": len(thoughts) / len(prompts),
    }
