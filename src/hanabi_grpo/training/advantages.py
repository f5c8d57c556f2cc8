"""A step's advantages: which episodes an estimator compares, and the state that it hands on.

In this order: the estimator's advantages, or its credits normalised as HANABI_NORMALIZE says;
`whiten` (HANABI_WHITEN_ADVANTAGES); `clip` (HANABI_ADVANTAGE_CLIP). It is ROLL's order.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from math import hypot, sqrt
from typing import NamedTuple

from hanabi_grpo.training.estimators import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    EstimatorState,
    Method,
    Over,
    Pool,
    TurnValues,
)
from hanabi_grpo.training.estimators.arithmetic import EPSILON
from hanabi_grpo.training.estimators.normalization import normalize
from hanabi_grpo.training.groups import flatten_groups, trained_groups
from hanabi_grpo.types import Episode


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

    Games of different boards are compared with HANABI_NORMALIZE_OVER=step alone: their returns have
    other ranges.

    Args:
        groups: The step's groups, with the games in which the player's seat is trained.
        player: Number of the seat.
        estimator: That of the run.
        context: What the estimator knows beside these games.
    """
    is_within_group = estimator.pool is Pool.GROUP
    own_pool = Over.GROUP if is_within_group else Over.ENVIRONMENT

    def compare(episodes: Sequence[Episode]) -> TurnValues:
        if estimator.method is None:
            return estimator.advantages(episodes, player, context)
        return estimator.credits(episodes, player, context)

    values = _pool_by_pool(groups, own_pool, lambda places: compare(_episodes(groups, places)))
    method = estimator.method
    if method is None or method is Method.NONE:
        return values
    credits = values

    def normalized(places: Sequence[_Place]) -> TurnValues:
        games = [credits[place.group][place.game] for place in places]
        return normalize(games, method, once_a_game=estimator.once_a_game)

    return _pool_by_pool(groups, estimator.over, normalized)


def _pool_by_pool(
    groups: Sequence[Sequence[Episode]],
    over: Over,
    compare: Callable[[Sequence[_Place]], TurnValues],
) -> list[TurnValues]:
    """Return per group and game what a function makes of all the games that are compared."""
    pools: dict[Hashable, list[_Place]] = defaultdict(list)
    values: list[TurnValues] = []
    for group_number, group in enumerate(groups):
        for game, episode in enumerate(group):
            pools[pool_key(episode, group_number, over)].append(_Place(group_number, game))
        # Filled in below, as every game is in one pool.
        values.append([[] for _ in group])
    for places in pools.values():
        for place, game_values in zip(places, compare(places), strict=True):
            values[place.group][place.game] = game_values
    return values


def _episodes(groups: Sequence[Sequence[Episode]], places: Sequence[_Place]) -> list[Episode]:
    return [groups[place.group][place.game] for place in places]


def pool_key(episode: Episode, group: Hashable, over: Over) -> Hashable:
    """Return what the episodes that are compared with each other have in common.

    Args:
        episode: One of them.
        group: Number of its group, or another name of it.
        over: What is compared.
    """
    match over:
        case Over.GROUP:
            return group, episode.spec_hash
        case Over.TASK:
            return episode.suite, episode.seed, episode.spec_hash
        case Over.ENVIRONMENT:
            return episode.spec_hash
        case Over.STEP:
            return None


def whiten(values: TurnValues, lengths: Sequence[Sequence[int]]) -> TurnValues:
    """Return (x − μ) / (σ + ε), μ and σ over a player's trained tokens of the step.

    Each token has the value of its turn, so a turn counts as often as it has tokens. σ² is divided
    by n − 1. Fewer than two tokens stay as they are.

    Source: ROLL's `masked_whiten`, over the tokens of all processes.

    Args:
        values: Per game the value of each own turn.
        lengths: Per game and own turn the number of its trained tokens.
    """
    moments = token_moments(values, lengths)
    if moments is None:
        return values
    mean, deviation = moments
    return [[(value - mean) / (deviation + EPSILON) for value in game] for game in values]


def token_moments(
    values: TurnValues, lengths: Sequence[Sequence[int]]
) -> tuple[float, float] | None:
    """Return mean and sample deviation over tokens of values of turns; None of fewer than two.

    Args:
        values: Per game the value of each own turn.
        lengths: Per game and own turn the number of its tokens.
    """
    counted: list[tuple[float, int]] = []
    for game, game_lengths in zip(values, lengths, strict=True):
        counted.extend(zip(game, game_lengths, strict=True))
    num_tokens = sum(length for _, length in counted)
    if num_tokens < 2:
        return None
    mean = sum(value * length for value, length in counted) / num_tokens
    distances = [(value - mean) * sqrt(length / (num_tokens - 1)) for value, length in counted]
    return mean, hypot(*distances)


def clip(values: TurnValues, limit: float) -> TurnValues:
    """Return values within [−limit, limit].

    Args:
        values: Per game the value of each own turn.
        limit: HANABI_ADVANTAGE_CLIP.
    """
    return [[min(max(value, -limit), limit) for value in game] for game in values]


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
        groups: The step's groups, with the rewards that advantages were computed of.
        own: Per seat the policy spec of the adapter that is trained in it, see
            `settings.partners.own_seats`.
    """
    for player in range(len(own)):
        episodes = flatten_groups(trained_groups(groups, player, own))
        state = estimator.next_state(state, episodes, player)
    return state
