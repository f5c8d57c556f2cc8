"""A step's advantages: which episodes an estimator compares, and its state for the next step.

Advantages are computed in ROLL's order: the estimator's advantages, or its credits normalized as
HANABI_NORMALIZE says; then `whiten` (HANABI_WHITEN_ADVANTAGES); then `clip`
(HANABI_ADVANTAGE_CLIP).
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
    """Position of a game in the step's groups."""

    group: int
    game: int


def step_advantages(
    groups: Sequence[Sequence[Episode]],
    player: int,
    estimator: Estimator,
    context: EstimatorContext = NOTHING_KNOWN,
) -> list[TurnValues]:
    """Return the advantages of a player's own turns, per group and per game.

    Games of different boards are compared only with HANABI_NORMALIZE_OVER=step, because their
    returns have different ranges.

    Args:
        groups: The step's groups, with the games in which the player's seat is trained.
        player: Number of the seat.
        estimator: The run's estimator.
        context: What the estimator knows besides these games.
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
    """Apply a function to each pool of compared games; returns its values per group and game."""
    pools: dict[Hashable, list[_Place]] = defaultdict(list)
    values: list[TurnValues] = []
    for group_number, group in enumerate(groups):
        for game, episode in enumerate(group):
            pools[pool_key(episode, group_number, over)].append(_Place(group_number, game))
        # Filled in below: every game is in exactly one pool.
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
        group: Number of its group, or any other key of the group.
        over: The pool over which episodes are compared.
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
    """Return (x − μ) / (σ + ε), with μ and σ over a player's trained tokens of the step.

    Each token has the value of its turn, so a turn is weighted by its number of tokens. σ² is the
    sample variance (divided by n − 1). With fewer than two tokens the values are unchanged.

    Source: ROLL's `masked_whiten`, over the tokens of all processes.

    Args:
        values: Per game, the value of each own turn.
        lengths: Per game and own turn, the number of trained tokens.
    """
    moments = token_moments(values, lengths)
    if moments is None:
        return values
    mean, deviation = moments
    return [[(value - mean) / (deviation + EPSILON) for value in game] for game in values]


def token_moments(
    values: TurnValues, lengths: Sequence[Sequence[int]]
) -> tuple[float, float] | None:
    """Return mean and sample deviation of turn values over tokens; None for fewer than two tokens.

    Args:
        values: Per game, the value of each own turn.
        lengths: Per game and own turn, the number of tokens.
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
    """Return the values clipped to [−limit, limit].

    Args:
        values: Per game, the value of each own turn.
        limit: HANABI_ADVANTAGE_CLIP.
    """
    return [[min(max(value, -limit), limit) for value in game] for game in values]


def next_estimator_state(
    estimator: Estimator,
    state: EstimatorState,
    groups: Sequence[Sequence[Episode]],
    own: Sequence[str],
) -> EstimatorState:
    """Return the estimator's state after a step, for all players.

    Args:
        estimator: The run's estimator.
        state: The state that the step's advantages were computed with.
        groups: The step's groups, with the rewards that the advantages were computed from.
        own: Per seat, the policy spec of the adapter that is trained in it, see
            `settings.partners.own_seats`.
    """
    for player in range(len(own)):
        episodes = flatten_groups(trained_groups(groups, player, own))
        state = estimator.next_state(state, episodes, player)
    return state
