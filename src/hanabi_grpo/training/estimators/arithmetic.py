"""The arithmetic that estimators share: games and turns beside the means of others."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import hypot

from hanabi_grpo.types import Episode, Turn

TurnValues = list[list[float]]
"""A number per game and own turn of one player; an empty list for a game without a turn of it.

Example: [[0.93, 0.93], [-1.06], [0.13]] for three games with 2, 1 and 1 turns of the player.
"""

EPSILON = 1e-4
"""Added to every standard deviation, so that games that are all alike divide by no 0."""


def compare_games(
    episodes: Sequence[Episode],
    player: int,
    compare: Callable[[Sequence[float]], Sequence[float]],
    value_of: Callable[[Episode, int], float] = Episode.reward,
) -> TurnValues:
    """Give every turn of a game the same number: how its game compares with the others.

    Args:
        episodes: Games of one pool.
        player: Number of the seat. Only games in which it had a turn are compared.
        compare: Makes of the values of all these games an advantage for each.
        value_of: (episode, player) -> the game's value; its return by default.

    Returns:
        The advantage of each game, once for each of the player's turns in it.
    """
    num_turns = []
    game_values = []
    for episode in episodes:
        num_turns.append(len(episode.trajectory(player)))
        if num_turns[-1]:
            game_values.append(value_of(episode, player))
    game_advantages = iter(compare(game_values))
    advantages: TurnValues = []
    for count in num_turns:
        turn_advantages = [next(game_advantages)] * count if count else []
        advantages.append(turn_advantages)
    return advantages


def lambda_advantages(
    episode: Episode,
    player: int,
    chain: Mapping[int, float],
    decay: float,
    gamma: float = 1.0,
) -> dict[int, float]:
    """Return A_k = Σ_j (γλ)^j δ_{k+j} at the turns of a chain.

    δ_k = r_k + γ V(s_{k+1}) − V(s_k). r_k is what the player receives from turn k on and before the
    next turn of the chain; behind the last one nothing is expected. Turns of one step have one
    state, see `state_value`.

    Source: generalised advantage estimation (arXiv 1506.02438), equation 16.

    Args:
        episode: One game.
        player: Number of the seat whose rewards count.
        chain: V(s_k) by the number of the turn that was made in s_k, see `LearnedValues.chain`.
        decay: λ, from 0 to 1.
        gamma: γ, what a state further along the chain is worth.

    Returns:
        The advantage of each turn of the chain, by its number.
    """
    advantages: dict[int, float] = {}
    reward = 0.0
    value_after = 0.0
    advantage = 0.0
    for turns in _steps_backwards(episode):
        reward += sum(turn.reward(player) for _, turn in turns)
        asked = [number for number, _ in turns if number in chain]
        if not asked:
            continue
        value = state_value(
            [(episode.turns[number].player, chain[number]) for number in asked], player
        )
        advantage = reward + gamma * value_after - value + gamma * decay * advantage
        for number in asked:
            advantages[number] = advantage
        value_after = value
        reward = 0.0
    return advantages


def state_value(values: Sequence[tuple[int, float]], player: int) -> float:
    """Return the value of the state in which a step's players were asked.

    It is the player's own where it has one, else the mean over the others. Of a player that calls
    tools only the first value counts: behind a call the state shows what the player has chosen, and
    what is taken off for it would take the call's doing off.

    Args:
        values: (player, value) of the step's turns, the last turn first.
        player: Number of the seat.
    """
    # What comes last stays.
    first_of_player = dict(values)
    if player in first_of_player:
        return first_of_player[player]
    return mean([*first_of_player.values()])


def token_advantages(
    episode: Episode,
    player: int,
    values: Mapping[int, Sequence[float]],
    decay: float,
    gamma: float = 1.0,
) -> dict[int, list[float]]:
    """Return GAE over the tokens of a player's replies, by the number of the turn.

    The chain is of the player's own tokens: s_k is what stands before one. What the player is paid
    from a turn on until its next one is paid with the turn's last token; the state behind that is
    the first one of its next turn.

    Source: generalised advantage estimation (arXiv 1506.02438), equation 16, over tokens as in
    PPO of language models.

    Args:
        episode: One game.
        player: Number of the seat.
        values: V before each token of the reply, by the number of the turn; at least one each.
        decay: λ, from 0 to 1, from token to token.
        gamma: γ, from token to token.
    """
    advantages: dict[int, list[float]] = {}
    reward = 0.0
    value_after = 0.0
    advantage = 0.0
    for turns in _steps_backwards(episode):
        reward += sum(turn.reward(player) for _, turn in turns)
        for number, turn in turns:
            if turn.player != player or number not in values:
                continue
            backwards = []
            for value in reversed(values[number]):
                advantage = reward + gamma * value_after - value + gamma * decay * advantage
                backwards.append(advantage)
                value_after = value
                reward = 0.0
            advantages[number] = backwards[::-1]
    return advantages


def _steps_backwards(episode: Episode) -> list[list[tuple[int, Turn]]]:
    """Return the numbered turns of each of the game's steps, the last step and turn first."""
    backwards = list(enumerate(episode.turns))
    backwards.reverse()
    steps = []
    for _, turns in groupby(backwards, key=lambda pair: pair[1].step):
        steps.append(list(turns))
    return steps


def mean_of_others(values: TurnValues, game: int) -> float | None:
    """Return the mean over the turns of all games but one; None where they have no turn."""
    others = flatten([*values[:game], *values[game + 1 :]])
    if not others:
        return None
    return mean(others)


def flatten(values: TurnValues) -> list[float]:
    """Return the values of all turns of all games in one list."""
    flat: list[float] = []
    for game in values:
        flat.extend(game)
    return flat


def divisor(values: Sequence[float], scaled: bool) -> float:
    """Return std + ε, or 1 where `scaled` is false."""
    if not scaled:
        return 1.0
    return deviation(values) + EPSILON


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of nothing."""
    if not values:
        return 0.0
    return sum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (divided by n − 1), 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    average = mean(values)
    # Not by squares: those of large values are infinite, and such a divisor would make every
    # advantage a quiet 0.
    distances = [value - average for value in values]
    return hypot(*distances) / (len(values) - 1) ** 0.5
