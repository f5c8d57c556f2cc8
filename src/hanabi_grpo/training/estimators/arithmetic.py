"""The arithmetic that estimators share: comparing episodes and turns with means of others."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import hypot

from hanabi_grpo.types import TURN_PARTS, Episode, Turn

TurnValues = list[list[float]]
"""One number per episode and turn of one player; an empty list for an episode without its turns.

Example: [[0.93, 0.93], [-1.06], [0.13]] for three episodes with 2, 1 and 1 turns of the player.
"""

EPSILON = 1e-4
"""Added to every standard deviation, so that identical returns do not cause a division by 0."""


def compare_games(
    episodes: Sequence[Episode],
    player: int,
    compare: Callable[[Sequence[float]], Sequence[float]],
    value_of: Callable[[Episode, int], float] = Episode.reward,
) -> TurnValues:
    """Give every turn of an episode the same number: how the episode compares with the others.

    Args:
        episodes: Episodes of one pool.
        player: Number of the seat. Only episodes in which it had a turn are compared.
        compare: Turns the values of all these episodes into one advantage each.
        value_of: (episode, player) -> the episode's value; its return by default.

    Returns:
        The advantage of each episode, once for each of the player's turns in it.
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
    *,
    of_team: bool = False,
) -> dict[int, float]:
    """Return A_k = Σ_j (γλ)^j δ_{k+j} at the turns of a chain.

    δ_k = r_k + γ V(s_{k+1}) − V(s_k). r_k is the player's reward from turn k until before the next
    turn of the chain; the value after the last turn is 0. Turns of one step share a state, see
    `state_value`.

    Source: generalized advantage estimation (arXiv 1506.02438), equation 16.

    Args:
        episode: The episode.
        player: Number of the seat whose rewards count.
        chain: V(s_k) by the number of the turn taken in s_k, see `LearnedValues.chain`.
        decay: λ, from 0 to 1.
        gamma: γ, the discount per state of the chain.
        of_team: Whether the chain consists of a team's turns. r_k then has only the rewards that
            all players share, without `TURN_PARTS`: values of other players' states do not estimate
            this player's own penalties, and would carry theirs into its advantages.

    Returns:
        The advantage of each turn of the chain, by turn number.
    """
    advantages: dict[int, float] = {}
    reward = 0.0
    value_after = 0.0
    advantage = 0.0
    for turns in _steps_backwards(episode):
        for _, turn in turns:
            if of_team:
                reward += sum_parts(turn, player, of_turn=False)
            else:
                reward += turn.reward(player)
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


def sum_parts(turn: Turn, player: int, *, of_turn: bool) -> float:
    """Return the sum of a player's rewards in a turn in `TURN_PARTS`, or in all other parts.

    In a team, all players get the other parts, and `TURN_PARTS` concern this player alone.
    """
    parts = turn.rewards[player].items()
    return sum(value for part, value in parts if (part in TURN_PARTS) == of_turn)


def state_value(values: Sequence[tuple[int, float]], player: int) -> float:
    """Return the value of the state in which a step's players were asked.

    This is the player's own value if it has one, else the mean over the other players. For a player
    that calls tools, only its first value counts: after a call, the state reveals the player's
    choice, so subtracting its value would also subtract the effect of the call.

    Args:
        values: (player, value) of the step's turns, the last turn first.
        player: Number of the seat.
    """
    # A dict keeps the last value of each player, which is its first turn.
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
    """Return GAE over the tokens of a player's replies, by turn number.

    The chain consists of the player's own tokens: s_k is the context before token k. The rewards
    between a turn and the player's next turn are credited to the turn's last token, whose successor
    state is the first state of the next turn.

    Source: generalized advantage estimation (arXiv 1506.02438), equation 16, over tokens as in
    PPO of language models.

    Args:
        episode: The episode.
        player: Number of the seat.
        values: V before each token of the reply, by turn number; at least one value each.
        decay: λ per token, from 0 to 1.
        gamma: γ per token.
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
    """Return the numbered turns of each step of the episode, the last step and turn first."""
    backwards = list(enumerate(episode.turns))
    backwards.reverse()
    steps = []
    for _, turns in groupby(backwards, key=lambda pair: pair[1].step):
        steps.append(list(turns))
    return steps


def mean_of_others(values: TurnValues, game: int) -> float | None:
    """Return the mean over the turns of all episodes but one; None if those have no turns."""
    others = flatten([*values[:game], *values[game + 1 :]])
    if not others:
        return None
    return mean(others)


def flatten(values: TurnValues) -> list[float]:
    """Return the values of all turns of all episodes in one list."""
    flat: list[float] = []
    for game in values:
        flat.extend(game)
    return flat


def divisor(values: Sequence[float], scaled: bool) -> float:
    """Return std + ε, or 1 if `scaled` is false."""
    if not scaled:
        return 1.0
    return deviation(values) + EPSILON


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 for an empty sequence."""
    if not values:
        return 0.0
    return sum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (divided by n − 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    average = mean(values)
    # No explicit squares: they overflow to infinity for large values, and an infinite divisor would
    # silently make every advantage 0.
    distances = [value - average for value in values]
    return hypot(*distances) / (len(values) - 1) ** 0.5
