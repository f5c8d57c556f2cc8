"""One player's advantages over a whole step: which games are compared, and whitening."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, centred
from hanabi_grpo.types import Episode


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
    found: list[Values] = [[[] for _ in group] for group in groups]
    for pool in _pools(groups, estimator):
        values = estimator([groups[group][game] for group, game in pool], player)
        for (group, game), game_values in zip(pool, values, strict=True):
            found[group][game] = game_values
    if whiten:
        flat = iter(centred([value for group in found for game in group for value in game], True))
        found = [[[next(flat) for _ in game] for game in group] for group in found]
    return found


def _pools(groups: Sequence[Sequence[Episode]], estimator: Estimator) -> list[list[tuple[int, int]]]:
    """Return the places (group, game) of the games that are compared with each other."""
    pools: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for game, episode in enumerate(group):
            key = (number if estimator.pool == "group" else None, episode.spec_hash)
            pools.setdefault(key, []).append((number, game))
    return list(pools.values())
