"""The rewards that a step trains on.

Before estimators and critics read the rewards of turns, the settings below change them, separately
for each seat, in this order (which is ROLL's):

1. `clip_returns` (HANABI_REWARD_CLIP),
2. the KL cost of replies (HANABI_KL_IN=reward, `kl`),
3. `whiten_rewards` (HANABI_WHITEN_REWARDS).

Recorded games, scores and metrics show the environment's original rewards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import token_moments
from hanabi_grpo.training.estimators.arithmetic import EPSILON
from hanabi_grpo.training.groups import flatten_groups, trained_groups
from hanabi_grpo.training.thoughts import TrainedTokens, all_tokens
from hanabi_grpo.types import KL_PART, Episode, Turn

WHITENED = "whitened"
"""The reward part that subtracts the mean from each of a player's turns."""

Groups = Sequence[Sequence[Episode]]
"""A step's groups."""


def paid_groups(
    groups: Groups,
    settings: Settings,
    own_seats: Sequence[str],
    kl_costs: Mapping[int, Mapping[int, Sequence[float]]],
    trained: TrainedTokens = all_tokens,
) -> list[list[Episode]]:
    """Return a step's groups with the rewards to train on.

    Args:
        groups: Groups as they were played.
        settings: For HANABI_REWARD_CLIP and HANABI_WHITEN_REWARDS.
        own_seats: Per seat, the run's own adapter, even if its player does not learn in this step:
            its moving baseline is still updated.
        kl_costs: The cost of each of a seat's turns in points, by seat and number of the game.
        trained: Which tokens of a reply carry loss.
    """
    paid = [list(group) for group in groups]
    for seat in range(len(own_seats)):
        if settings.reward_clip is not None:
            paid = clip_returns(paid, seat, settings.reward_clip)
        if seat in kl_costs:
            paid = _charge(paid, seat, kl_costs[seat])
        if settings.whiten_rewards:
            paid = whiten_rewards(paid, seat, own_seats, trained)
    return paid


def clip_returns(groups: Groups, seat: int, limit: float) -> list[list[Episode]]:
    """Return the groups with a seat's return of each game clipped to [−limit, limit].

    If a game's return R is beyond the limit, all the seat's rewards in the game are multiplied by
    limit / |R|.

    Source: ROLL's `reward_clip`, which clamps the reward of a response to ±c (in a game of several
    turns, the sum over the whole conversation). ROLL clips after normalization, which here is part
    of the estimator; HANABI_ADVANTAGE_CLIP clips after that.

    Args:
        groups: The step's groups.
        seat: Number of the seat.
        limit: HANABI_REWARD_CLIP.
    """
    clipped = []
    for group in groups:
        episodes = []
        for episode in group:
            total = abs(episode.reward(seat)) if seat < episode.num_players else 0.0
            if total > limit:
                episode = _scale_rewards(episode, seat, limit / total)
            episodes.append(episode)
        clipped.append(episodes)
    return clipped


def whiten_rewards(
    groups: Groups,
    seat: int,
    own_seats: Sequence[str],
    trained: TrainedTokens = all_tokens,
) -> list[list[Episode]]:
    """Return the groups with a seat's rewards r_k replaced by (r_k − μ) / (σ + ε).

    r_k is the sum of the seat's rewards from its turn k until just before its next turn; the first
    turn also includes earlier rewards. μ and σ are over the trained tokens of the step, each of
    which has the r_k of its turn. The mean is subtracted from every turn, so it is subtracted more
    often in a longer game, as in the source.

    Source: ROLL's `whiten_rewards`, over token-level rewards, which are 0 except on the last token
    of a reply. Here all tokens of a reply have its reward, as they have its advantage.

    Args:
        groups: The step's groups.
        seat: Number of the seat.
        own_seats: See `paid_groups`.
        trained: Which tokens of a reply carry loss.
    """
    own = flatten_groups(trained_groups(groups, seat, own_seats))
    rewards = [turn_rewards(episode, seat) for episode in own]
    lengths = []
    for episode in own:
        lengths.append([sum(trained(turn)) for turn in episode.trajectory(seat)])
    moments = token_moments(rewards, lengths)
    whitened = [list(group) for group in groups]
    if moments is None:
        return whitened
    mean, deviation = moments
    scale = 1 / (deviation + EPSILON)
    own_ids = {id(episode) for episode in own}
    for group in whitened:
        for number, episode in enumerate(group):
            if id(episode) in own_ids:
                scaled = _scale_rewards(episode, seat, scale)
                shifts = [-mean * scale] * len(episode.trajectory(seat))
                group[number] = add_rewards(scaled, seat, WHITENED, shifts)
    return whitened


def _charge(groups: Groups, seat: int, costs: Mapping[int, Sequence[float]]) -> list[list[Episode]]:
    """Return the groups with the costs of a seat's replies subtracted, by number of the game."""
    charged = []
    number = 0
    for group in groups:
        episodes = []
        for episode in group:
            if number in costs:
                values = [-cost for cost in costs[number]]
                episode = add_rewards(episode, seat, KL_PART, values)
            episodes.append(episode)
            number += 1
        charged.append(episodes)
    return charged


def turn_rewards(episode: Episode, seat: int) -> list[float]:
    """Return r_k of each own turn: the seat's rewards from that turn until before its next one.

    Rewards before the first own turn are added to it.
    """
    rewards: list[float] = []
    before = 0.0
    for turn in episode.turns:
        reward = turn.reward(seat)
        if turn.player == seat:
            rewards.append(before + reward)
            before = 0.0
        elif rewards:
            rewards[-1] += reward
        else:
            before += reward
    return rewards


def add_rewards(episode: Episode, seat: int, part: str, values: Sequence[float]) -> Episode:
    """Return the episode with a further reward part in each of a seat's own turns.

    Args:
        episode: The game.
        seat: Number of the seat.
        part: Name of the reward part.
        values: One value for each own turn.
    """
    turns = []
    remaining = iter(values)
    for turn in episode.turns:
        if turn.player == seat:
            turn = _with_rewards(turn, seat, {**turn.rewards[seat], part: next(remaining)})
        turns.append(turn)
    return replace(episode, turns=tuple(turns))


def _scale_rewards(episode: Episode, seat: int, factor: float) -> Episode:
    turns = []
    for turn in episode.turns:
        parts = {part: value * factor for part, value in turn.rewards[seat].items()}
        turns.append(_with_rewards(turn, seat, parts))
    return replace(episode, turns=tuple(turns))


def _with_rewards(turn: Turn, seat: int, parts: Mapping[str, float]) -> Turn:
    rewards = list(turn.rewards)
    rewards[seat] = parts
    return replace(turn, rewards=tuple(rewards))
