"""What estimators are the gradient of, exactly, over every group of games of a tiny game.

The player's first reply 0 ends the game with 1 point; after 1, which costs 0.25 as illegal, it is
asked once more, and gets 3 points for 1, and for 0 none and a penalty of 0.5. A policy has a logit
for each state; the gradient of an expectation is taken by central differences, without any
advantage.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.types import Episode, Turn
from made_games import made_episode, made_turn

GAMES = ((0,), (1, 0), (1, 1))
"""The replies of each game that can be played."""
SCORES = (1.0, 0.0, 3.0)
"""Of each of these games."""
PENALTIES = ((0.0,), (-0.25, -0.5), (-0.25, 0.0))
"""Of each of their turns."""
Logits = tuple[float, ...]
"""Of reply 1, by state. With HANABI_MEMORY=turn both turns have one message, and so one state."""
MEMORY_GAME: Logits = (0.4, -0.7)
MEMORY_TURN: Logits = (0.4,)
BOTH_MEMORIES = pytest.mark.parametrize(
    "logits", [MEMORY_GAME, MEMORY_TURN], ids=["memory-game", "memory-turn"]
)
DIFFERENCE = 1e-5
"""Between logits, of central differences."""


def state_of(turn: int, logits: Logits) -> int:
    return turn % len(logits)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def chance_of_one(turn: int, logits: Logits) -> float:
    """Return the probability of reply 1 in a turn."""
    return sigmoid(logits[state_of(turn, logits)])


def likelihood(game: int, logits: Logits) -> float:
    """Return the probability of a game."""
    probability = 1.0
    for turn, reply in enumerate(GAMES[game]):
        one = chance_of_one(turn, logits)
        probability *= one if reply else 1 - one
    return probability


def episode(game: int, logits: Logits) -> Episode:
    turns = []
    last = len(GAMES[game]) - 1
    for number, (reply, penalty) in enumerate(zip(GAMES[game], PENALTIES[game], strict=True)):
        rewards = {"score": SCORES[game] if number == last else 0.0}
        if penalty:
            rewards["illegal"] = penalty
        turn = made_turn(0, reply, rewards=rewards, prompt_ids=(7,))
        turns.append(replace(turn, fresh=len(logits) == 1))
    return made_episode(*turns)


def slope(expected: Callable[[Logits], float], at: Logits) -> list[float]:
    """Return the derivatives of a function of the logits."""
    derivatives = []
    for state in range(len(at)):
        higher = list(at)
        higher[state] += DIFFERENCE
        lower = list(at)
        lower[state] -= DIFFERENCE
        rise = expected(tuple(higher)) - expected(tuple(lower))
        derivatives.append(rise / (2 * DIFFERENCE))
    return derivatives


def mean_gradient(name: str, num_games: int, logits: Logits) -> list[float]:
    """Return the expectation over all groups of 1/K Σ_i Σ_t A_it ∇log π(a_it)."""
    estimator = make_estimator(name, scale="none")
    gradient = [0.0] * len(logits)
    for group in itertools.product(range(len(GAMES)), repeat=num_games):
        values = estimator.advantages([episode(game, logits) for game in group], 0)
        weight = math.prod(likelihood(game, logits) for game in group) / num_games
        for game, advantages in zip(group, values, strict=True):
            for turn, (reply, advantage) in enumerate(zip(GAMES[game], advantages, strict=True)):
                log_gradient = reply - chance_of_one(turn, logits)
                gradient[state_of(turn, logits)] += weight * advantage * log_gradient
    return gradient


def expected_return(logits: Logits) -> float:
    """Return the expectation of the whole return."""
    total = 0.0
    for game in range(len(GAMES)):
        total += likelihood(game, logits) * (SCORES[game] + sum(PENALTIES[game]))
    return total


@BOTH_MEMORIES
@pytest.mark.parametrize("num_games", [2, 3])
@pytest.mark.parametrize("name", ["rloo", "state_baseline"])
def test_the_expected_gradient_is_that_of_the_return(
    name: str, num_games: int, logits: Logits
) -> None:
    assert mean_gradient(name, num_games, logits) == pytest.approx(
        slope(expected_return, logits), abs=1e-8
    )


@BOTH_MEMORIES
@pytest.mark.parametrize("num_games", [2, 3])
def test_a_turns_penalty_is_its_own_where_it_is_met_and_spares_no_earlier_reply(
    num_games: int, logits: Logits
) -> None:
    # The second turn is met as often as it is at `logits`.
    met = sigmoid(logits[0])

    def with_fixed_histories(moving: Logits) -> float:
        score = sum(likelihood(game, moving) * SCORES[game] for game in range(len(GAMES)))
        first = chance_of_one(0, moving)
        second = chance_of_one(1, moving)
        return score + first * -0.25 + met * (1 - second) * -0.5

    gradient = mean_gradient("turn", num_games, logits)
    assert gradient == pytest.approx(slope(with_fixed_histories, logits), abs=1e-8)
    # Of the whole return it lacks what the first reply does to the second's penalty: 0.5 × (1 −
    # second) × ∇ first.
    first = chance_of_one(0, logits)
    second = chance_of_one(1, logits)
    lacking = slope(expected_return, logits)[0] - gradient[0]
    assert lacking == pytest.approx(-0.5 * (1 - second) * first * (1 - first), abs=1e-8)


def test_a_groups_own_mean_only_shrinks_the_gradient() -> None:
    shrunk = [value * 2 / 3 for value in slope(expected_return, MEMORY_GAME)]
    assert mean_gradient("grpo", 3, MEMORY_GAME) == pytest.approx(shrunk, abs=1e-8)


def answered(prompt: int, reply: int, score: float, *, fresh: bool = False) -> Turn:
    """Return a turn of player 0 with a message and a reply of one token each."""
    turn = made_turn(0, reply, rewards={"score": score}, prompt_ids=(prompt,))
    return replace(turn, fresh=fresh)


def test_turns_are_compared_with_those_of_the_same_history_then_of_the_same_number() -> None:
    group = [
        made_episode(answered(1, 5, 0.0), answered(2, 5, 4.0)),
        made_episode(answered(1, 5, 1.0), answered(2, 6, 0.0)),
        # The same message, after another reply: nobody else met this history.
        made_episode(answered(1, 6, 0.0), answered(2, 5, 2.0)),
    ]
    # From the first turns on 4, 1, 2; from the second on 4, 0 with one history, 2 with another.
    advantages = make_estimator("state_baseline").advantages(group, 0)
    assert advantages == [[2.5, 4.0], [-2.0, -4.0], [-0.5, 0.0]]


def test_where_a_turn_is_a_conversation_the_message_is_the_state_and_own_turns_stay_out() -> None:
    group = [
        made_episode(
            answered(9, 5, 1.0, fresh=True),
            answered(9, 5, 0.0, fresh=True),
            answered(9, 5, 5.0, fresh=True),
        ),
        made_episode(answered(8, 5, 0.0, fresh=True), answered(9, 6, 2.0, fresh=True)),
    ]
    # From each turn on 6, 5, 5, and 2, 2; message 9 was met by the other game with 2, and with 16/3
    # on average.
    advantages = make_estimator("state_baseline").advantages(group, 0)
    assert advantages[0] == [4.0, 3.0, 3.0]
    # Nobody else met message 8: the other game's first turn.
    assert advantages[1] == pytest.approx([2 - 6, 2 - 16 / 3])
