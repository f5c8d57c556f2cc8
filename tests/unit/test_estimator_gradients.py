"""What estimators are the gradient of, exactly: every group of games of a tiny game, with its
probability.

The player's first reply 0 ends the game with 1 point; after 1, which costs 0.25 as illegal, it is
asked once more, and gets 3 points for 1, and for 0 none and a penalty of 0.5. A policy has a logit
for each state; the gradient of an expectation is taken by central differences, without any
advantage."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hanabi_grpo.training.advantages import ESTIMATORS, choose_estimator
from hanabi_grpo.types import Episode, Turn
from made_games import made_episode, made_turn

GAMES = ((0,), (1, 0), (1, 1))
SCORES = (1.0, 0.0, 3.0)
PENALTIES = ((0.0,), (-0.25, -0.5), (-0.25, 0.0))
Logits = tuple[float, ...]
"""Of reply 1, by state. With HANABI_MEMORY=turn both turns have one message, and so one state."""
WHOLE, TURN = (0.4, -0.7), (0.4,)


def state(turn: int, logits: Logits) -> int:
    return turn % len(logits)


def likelihood(game: int, logits: Logits) -> float:
    """Return the probability of a game."""
    ones = [1 / (1 + math.exp(-logits[state(turn, logits)])) for turn in range(len(GAMES[game]))]
    return math.prod(
        one if reply else 1 - one for one, reply in zip(ones, GAMES[game], strict=True)
    )


def episode(game: int, logits: Logits) -> Episode:
    turns = []
    for number, (reply, penalty) in enumerate(zip(GAMES[game], PENALTIES[game], strict=True)):
        is_last = number == len(GAMES[game]) - 1
        rewards = {
            "score": SCORES[game] if is_last else 0.0,
            **({"illegal": penalty} if penalty else {}),
        }
        turn = made_turn(0, reply, rewards=rewards, prompt_ids=(7,))
        turns.append(replace(turn, fresh=len(logits) == 1))
    return made_episode(*turns)


def slope(expected: Callable[[Logits], float], at: Logits) -> list[float]:
    """Return the derivatives of a function of the logits."""
    step = 1e-5

    def moved(one: int, by: float) -> float:
        return expected(tuple(value + by * (place == one) for place, value in enumerate(at)))

    return [(moved(one, step) - moved(one, -step)) / (2 * step) for one in range(len(at))]


def mean_gradient(name: str, num_games: int, logits: Logits) -> list[float]:
    """Return the expectation over all groups of 1/K Σ_i Σ_t A_it ∇log π(a_it)."""
    found = [0.0] * len(logits)
    for group in itertools.product(range(len(GAMES)), repeat=num_games):
        values = choose_estimator(name, "none")([episode(game, logits) for game in group], 0)
        weight = math.prod(likelihood(game, logits) for game in group) / num_games
        for game, advantages in zip(group, values, strict=True):
            for turn, (reply, advantage) in enumerate(zip(GAMES[game], advantages, strict=True)):
                one = state(turn, logits)
                found[one] += weight * advantage * (reply - 1 / (1 + math.exp(-logits[one])))
    return found


def of_return(logits: Logits) -> float:
    """Return the expectation of the whole return."""
    return sum(
        likelihood(game, logits) * (SCORES[game] + sum(PENALTIES[game])) for game in range(3)
    )


@pytest.mark.parametrize("logits", [WHOLE, TURN], ids=["memory-game", "memory-turn"])
@pytest.mark.parametrize("num_games", [2, 3])
@pytest.mark.parametrize("name", ["rloo", "state_baseline"])
def test_the_expected_gradient_is_that_of_the_return(
    name: str, num_games: int, logits: Logits
) -> None:
    assert mean_gradient(name, num_games, logits) == pytest.approx(
        slope(of_return, logits), abs=1e-8
    )


@pytest.mark.parametrize("logits", [WHOLE, TURN], ids=["memory-game", "memory-turn"])
@pytest.mark.parametrize("num_games", [2, 3])
def test_a_turns_penalty_is_its_own_where_it_is_met_and_spares_no_earlier_reply(
    num_games: int, logits: Logits
) -> None:
    def with_fixed_histories(moving: Logits) -> float:
        score = sum(likelihood(game, moving) * SCORES[game] for game in range(3))
        first, second = (1 / (1 + math.exp(-moving[state(turn, moving)])) for turn in range(2))
        # The second turn is met as often as it is at `logits`.
        met = 1 / (1 + math.exp(-logits[0]))
        return score + first * -0.25 + met * (1 - second) * -0.5

    found = mean_gradient("turn", num_games, logits)
    assert found == pytest.approx(slope(with_fixed_histories, logits), abs=1e-8)
    # Of the whole return it lacks what the first reply does to the second's penalty: 0.5 × (1 −
    # second) × ∇ first.
    first, second = (1 / (1 + math.exp(-logits[state(turn, logits)])) for turn in range(2))
    lacking = [whole - own for whole, own in zip(slope(of_return, logits), found, strict=True)]
    assert lacking[0] == pytest.approx(-0.5 * (1 - second) * first * (1 - first), abs=1e-8)


def test_a_groups_own_mean_only_shrinks_the_gradient() -> None:
    shrunk = [value * 2 / 3 for value in slope(of_return, WHOLE)]
    assert mean_gradient("grpo", 3, WHOLE) == pytest.approx(shrunk, abs=1e-8)


def said(prompt: int, reply: int, score: float, **other: Any) -> Turn:
    return replace(made_turn(0, reply, rewards={"score": score}, prompt_ids=(prompt,)), **other)


def test_turns_are_compared_with_those_of_the_same_history_then_of_the_same_number() -> None:
    group = [
        made_episode(said(1, 5, 0.0), said(2, 5, 4.0)),
        made_episode(said(1, 5, 1.0), said(2, 6, 0.0)),
        # The same message, after another reply: nobody else met this history.
        made_episode(said(1, 6, 0.0), said(2, 5, 2.0)),
    ]
    # From the first turns on 4, 1, 2; from the second on 4, 0 with one history, 2 with another.
    assert ESTIMATORS["state_baseline"](group, 0) == [[2.5, 4.0], [-2.0, -4.0], [-0.5, 0.0]]


def test_where_a_turn_is_a_conversation_the_message_alone_is_the_state_and_a_games_own_turns_stay_out() -> (
    None
):
    group = [
        made_episode(*(said(9, 5, score, fresh=True) for score in (1.0, 0.0, 5.0))),
        made_episode(said(8, 5, 0.0, fresh=True), said(9, 6, 2.0, fresh=True)),
    ]
    # From each turn on 6, 5, 5, and 2, 2; message 9 was met by the other game with 2, and with 16/3
    # on average.
    values = ESTIMATORS["state_baseline"](group, 0)
    assert values[0] == [4.0, 3.0, 3.0]
    # Nobody else met message 8: the other game's first turn.
    assert values[1] == pytest.approx([2 - 6, 2 - 16 / 3])
