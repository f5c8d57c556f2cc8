"""A step's advantages: which episodes an estimator compares, and the state that it hands on."""

from collections.abc import Sequence

from hanabi_grpo.training.estimators import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    EstimatorState,
    Pool,
    TurnValues,
)
from hanabi_grpo.types import Episode, is_trained


def step_advantages(
    groups: Sequence[Sequence[Episode]],
    player: int,
    estimator: Estimator,
    context: EstimatorContext = NOTHING_KNOWN,
) -> list[TurnValues]:
    """Return per group, per game and per own turn of a player its advantage.

    Games of different boards are never compared: their returns have other ranges.

    Args:
        groups: The step's groups, with the games in which the player's seat is trained.
        player: Number of the seat.
        estimator: That of the run.
        context: What the estimator knows beside these games.
    """
    pools: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
    for group_number, group in enumerate(groups):
        compared_group = group_number if estimator.pool is Pool.GROUP else None
        for game, episode in enumerate(group):
            places = pools.setdefault((compared_group, episode.spec_hash), [])
            places.append((group_number, game))
    advantages: list[TurnValues] = [[[] for _ in group] for group in groups]
    for places in pools.values():
        episodes = [groups[group_number][game] for group_number, game in places]
        pool_advantages = estimator.advantages(episodes, player, context)
        for (group_number, game), values in zip(places, pool_advantages, strict=True):
            advantages[group_number][game] = values
    return advantages


def next_estimator_state(
    estimator: Estimator,
    state: EstimatorState,
    groups: Sequence[Sequence[Episode]],
    own: Sequence[str],
) -> EstimatorState:
    """Return what the estimator remembers after a step, of all players.

    Args:
        estimator: That of the run.
        state: What the step's advantages were computed with.
        groups: All groups that the step drew.
        own: Per seat the policy spec of the adapter that is trained in it, see
            `settings.partners.own_seats`.
    """
    for player in range(len(own)):
        episodes: list[Episode] = []
        for group in trained_groups(groups, player, own):
            episodes.extend(group)
        state = estimator.next_state(state, episodes, player)
    return state


def trained_groups(
    groups: Sequence[Sequence[Episode]], player: int, own: Sequence[str]
) -> list[list[Episode]]:
    """Return of each group the games in which a player's seat is trained, see `is_trained`."""
    return [[episode for episode in group if is_trained(episode, player, own)] for group in groups]
