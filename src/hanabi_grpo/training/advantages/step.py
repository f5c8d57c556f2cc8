"""One player's advantages over a whole step: which games are compared, whitening, and weights of tokens."""

from collections.abc import Sequence
from typing import Literal

from hanabi_grpo.training.advantages.estimators import Estimator, Values, over_turns
from hanabi_grpo.types import Episode

LossUnit = Literal["token", "turn", "sequence"]


def step_advantages(
    groups: Sequence[Sequence[Episode]], player: int, estimator: Estimator, *, whiten: bool = False
) -> list[Values]:
    """Return per group, per game, per own turn of a player its advantage.

    Games of different boards are never compared: their returns have other ranges.

    Args:
        groups: Per group its games in which the player's seat is trained.
        player: Number of the seat.
        estimator: Its pool says which games are compared.
        whiten: Bring the player's turns of the step, over all boards, to mean 0 and standard deviation 1.
    """
    pools: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for game, episode in enumerate(group):
            key = (number if estimator.pool == "group" else None, episode.spec_hash)
            pools.setdefault(key, []).append((number, game))
    found: list[Values] = [[[] for _ in group] for group in groups]
    for places in pools.values():
        compared = estimator([groups[number][game] for number, game in places], player)
        for (number, game), values in zip(places, compared, strict=True):
            found[number][game] = values
    if whiten:
        games = iter(over_turns([game for values in found for game in values], True))
        found = [[next(games) for _ in values] for values in found]
    return found


def token_weights(turns: Sequence[Sequence[int]], unit: LossUnit) -> list[list[float]]:
    """Return per sequence and turn the weight of each of that turn's tokens: what has equal weight in the loss.

    A player's loss is 1/N Σ_t ℓ_t over its N reply tokens of the step, and ℓ_t = −min(ρ_t A_t, clip(ρ_t) A_t) is linear
    in A_t under positive factors. A_t w_t in the place of A_t thus gives 1/N Σ_t w_t ℓ_t, and with these weights the
    wanted mean:

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
