"""What has equal weight in the loss: a token, a turn or a sequence; as weights on advantages."""

from collections.abc import Sequence
from typing import Literal

LossUnit = Literal["token", "turn", "sequence"]


def token_weights(turns: Sequence[Sequence[int]], unit: LossUnit) -> list[list[float]]:
    """Return per sequence and turn the weight of each of that turn's tokens.

    With the loss type `dapo` a player's loss is 1/N Σ_t ℓ_t over its N reply tokens of the step, and
    ℓ_t = −min(ρ_t A_t, clip(ρ_t) A_t) is linear in A_t under positive factors. A_t w_t in the place of A_t thus gives
    1/N Σ_t w_t ℓ_t, and with these weights the wanted mean:

    - token: w = 1, the mean over tokens
    - turn: w = N / (T n), with T turns that have tokens and n tokens in this turn: 1/T Σ_turns (1/n Σ_t ℓ_t)
    - sequence: w = N / (S n), with S sequences that have tokens and n reply tokens in this one:
      1/S Σ_sequences (1/n Σ_t ℓ_t), GRPO's own mean (arXiv 2402.03300, equation 3)

    Σ_t w_t = N for each, so the size of the loss does not depend on the unit. A KL term in the loss is no part of ℓ and
    stays a mean over tokens.

    Args:
        turns: Per sequence of one player the number of reply tokens of each turn.
        unit: What has equal weight.
    """
    total = sum(map(sum, turns))
    if unit == "turn":
        count = sum(length > 0 for lengths in turns for length in lengths)
        return [[total / (count * length) if length else 0.0 for length in lengths] for lengths in turns]
    if unit == "sequence":
        count = sum(sum(lengths) > 0 for lengths in turns)
        return [[total / (count * sum(lengths)) if length else 0.0 for length in lengths] for lengths in turns]
    return [[1.0] * len(lengths) for lengths in turns]
