"""HANABI_LOSS_UNIT: the unit that is weighted equally in the loss: token, turn or sequence."""

from collections.abc import Sequence
from typing import Literal

LossUnit = Literal["token", "turn", "sequence"]


def token_weights(turns: Sequence[Sequence[float]], unit: LossUnit) -> list[list[float]]:
    """Return the weight of each of a turn's tokens, per sequence and turn.

    A player's loss is 1/N Σ_t ℓ_t over its N reply tokens of the step, and ℓ_t scales with positive
    factors of A_t. Replacing A_t with A_t w_t gives the desired mean:

    - token: w = 1, the mean over tokens
    - turn: w = N / (T n), with T turns that have tokens and n tokens in this turn: 1/T Σ_turns (1/n
      Σ_t ℓ_t)
    - sequence: w = N / (S n), with S sequences that have tokens and n reply tokens in this one:
      1/S Σ_sequences (1/n Σ_t ℓ_t), GRPO's own mean (arXiv 2402.03300, equation 3)

    Σ_t w_t = N for each. A KL term in the loss is not part of ℓ and remains a mean over tokens.

    Args:
        turns: Per sequence and turn, the number of reply tokens, or the expected number.
        unit: HANABI_LOSS_UNIT.
    """
    if unit == "turn":
        return _turn_weights(turns)
    if unit == "sequence":
        return _sequence_weights(turns)
    return [[1.0] * len(lengths) for lengths in turns]


def _turn_weights(turns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return N / (T n) for each turn, 0 for a turn without tokens."""
    num_tokens: float = 0
    num_turns = 0
    for lengths in turns:
        for length in lengths:
            num_tokens += length
            num_turns += length > 0
    weights = []
    for lengths in turns:
        sequence_weights = []
        for length in lengths:
            weight = num_tokens / (num_turns * length) if length else 0.0
            sequence_weights.append(weight)
        weights.append(sequence_weights)
    return weights


def _sequence_weights(turns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return N / (S n) for each turn, with n the tokens of its sequence; 0 for an empty turn."""
    tokens_of_sequence = [sum(lengths) for lengths in turns]
    num_tokens = sum(tokens_of_sequence)
    num_sequences = 0
    for num_own in tokens_of_sequence:
        num_sequences += num_own > 0
    weights = []
    for lengths, num_own in zip(turns, tokens_of_sequence, strict=True):
        sequence_weights = []
        for length in lengths:
            weight = num_tokens / (num_sequences * num_own) if length else 0.0
            sequence_weights.append(weight)
        weights.append(sequence_weights)
    return weights
