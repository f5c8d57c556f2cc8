"""Episodes as JSON, both ways."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.messages import RolloutRequest
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json, read_struct
from hanabi_grpo.types import EpisodeStatus, Turn
from made_games import made_episode, made_turn


def turn(player: int, number: int, **rewards: float) -> Turn:
    made = made_turn(
        player, 20 + number, 2, rewards=rewards, logprobs=(-0.25, -0.5), version=3, num_players=3
    )
    return replace(made, step=number, prompt_ids=(10, 11 + number))


TURNS = (turn(0, 0), turn(1, 1, score=1.0, illegal=-0.5), turn(0, 2))
EPISODE = made_episode(
    *TURNS, score=1, num_players=3, seed=17, game=2, status=EpisodeStatus.TRUNCATED_TOKENS
)
"""Player 0 moves twice, player 1 once, and player 2's turn never comes."""


def put(row: Any, path: str, value: object) -> Any:
    """Replace one value of a row, e.g. at "turns/1/kind".

    The value `...` takes it out; without a path all of the row is replaced.
    """
    if not path:
        return value
    keys = [int(key) if key.isdecimal() else key for key in path.split("/")]
    *parents, last = keys
    target = row
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return row


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("preset", ..., "episode: preset: this field is missing"),
        ("seed", "17", "episode: seed='17': Expected `int`, got `str`"),
        ("num_players", 9, "episode: num_players=9, seats="),
        ("status", "won", "episode: status='won': Invalid enum value 'won'"),
        ("turns", None, "episode: turns=None: Expected `array`, got `null`"),
        ("turns/1/kind", "odd", "episode: turns.1.kind='odd'"),
        (
            "turns/1/player",
            3,
            "episode: turns.1: player=3 with 3 rewards, but num_players=3; allowed: players 0 to 2",
        ),
        (
            "turns/1/rewards/1/score",
            float("nan"),
            "episode: turns.1: a logprob or a reward is not finite",
        ),
        ("turns/1/rewards", [{}], "episode: turns.1: player=1 with 1 rewards, but num_players=3"),
        ("schema", 1, "episode: schema=1: this version reads 2;"),
        ("schema", 3, "episode: schema=3: this version reads 2;"),
        (
            "result/score",
            float("inf"),
            "episode: result.score=inf: a result must be finite",
        ),
        (
            "turns/2/logprobs/0",
            float("-inf"),
            "episode: turns.2: a logprob or a reward is not finite",
        ),
        (
            "turns/2/logprobs",
            [-0.5],
            "episode: turns.2: 1 logprobs for 2 reply ids; allowed: one each, or none",
        ),
        (
            "turns/0/version",
            1.5,
            "episode: turns.0.version=1.5: Expected `int | null`, got `float`",
        ),
        ("", None, "episode: all of it=None: Expected `object`"),
    ],
)
def test_a_malformed_row_is_refused_by_field(path: str, value: object, message: str) -> None:
    row = json.loads(json.dumps(episode_to_json(EPISODE)))
    assert episode_from_json(row) == EPISODE
    with pytest.raises(ServerError) as caught:
        episode_from_json(put(row, path, value))
    assert str(caught.value).startswith(message)


def seconds_to_refuse(name: str) -> float:
    """Return the time that a request with an unknown field of this name takes to be refused."""
    body = json.dumps({name: 1}).encode()
    start = time.perf_counter()
    with pytest.raises(ValueError, match="no such field"):
        read_struct(RolloutRequest, body)
    return time.perf_counter() - start


def test_the_name_of_an_unknown_field_is_not_searched_for_what_it_looks_like() -> None:
    # A search through all places where an error's location might begin took quadratic time.
    small = min(seconds_to_refuse(" - at `$" * 500 + "\n") for _ in range(3))
    large = seconds_to_refuse(" - at `$" * 50_000 + "\n")
    assert large < 1000 * max(small, 1e-4)
    for name in ("x" * 10**6 + "\n", " - at `$" * 10**5):
        with pytest.raises(ValueError, match="field") as caught:
            read_struct(RolloutRequest, json.dumps({name: 1}).encode())
        assert len(str(caught.value)) < 500
