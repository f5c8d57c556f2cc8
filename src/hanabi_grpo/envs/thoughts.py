"""How much players think before they act, and whether their thoughts depend on what they read."""

from collections.abc import Sequence
from statistics import fmean

from hanabi_grpo.envs.texts import think_parts
from hanabi_grpo.types import Episode


def thought_figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the figures of some episodes; {} if no reply has a thought.

    `thoughts/turn_share` is the share of replies with a thought. Over those replies:
    `thoughts/words` is the mean length in words; `thoughts/cut_share` is the share that was cut off
    by the reply limit; and `thoughts/per_prompt` is the number of distinct thoughts divided by the
    number of distinct prompts. If the latter falls toward 0, players write the same template
    whatever they read, and rewards no longer depend on the thoughts; RAGEN describes this collapse
    (arXiv 2504.20073).
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
