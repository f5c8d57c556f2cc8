"""A step's advantages: which episodes an estimator compares, and the state that it hands on."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hanabi_grpo.training.estimators import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    EstimatorState,
    Pool,
    TurnValues,
)
from hanabi_grpo.training.groups import flatten_groups, trained_groups
from hanabi_grpo.types import Episode


class _PoolKey(NamedTuple):
    """Games that are compared with each other."""

    group: int | None
    """Number of the group; None: games of all groups are compared."""
    spec_hash: str
    """Of the board."""


class _Place(NamedTuple):
    """Where a game is among the step's groups."""

    group: int
    game: int


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
    pools: dict[_PoolKey, list[_Place]] = defaultdict(list)
    advantages: list[TurnValues] = []
    for group_number, group in enumerate(groups):
        compared_group = group_number if estimator.pool is Pool.GROUP else None
        for game, episode in enumerate(group):
            pool = _PoolKey(compared_group, episode.spec_hash)
            pools[pool].append(_Place(group_number, game))
        # Filled in below, as every game is in one pool.
        advantages.append([[] for _ in group])
    for places in pools.values():
        episodes = [groups[place.group][place.game] for place in places]
        pool_advantages = estimator.advantages(episodes, player, context)
        for place, values in zip(places, pool_advantages, strict=True):
            advantages[place.group][place.game] = values
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
        episodes = flatten_groups(trained_groups(groups, player, own))
        state = estimator.next_state(state, episodes, player)
    return state
