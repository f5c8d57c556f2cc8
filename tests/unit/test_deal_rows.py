"""Rows of a rollout request, and the answers back into games."""

from typing import Any

import pytest

from fake_engine import LAPTOP, deal
from hanabi_grpo.envs.hanabi.policies import HintBot
from hanabi_grpo.errors import NonFiniteError, ServerError, SettingsError
from hanabi_grpo.rollout.deal_rows import games_of, group_rows, rows_of
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.runs.wire import dropped_to_outputs, episode_to_outputs
from hanabi_grpo.types import DroppedGame


def answers(seed: int, game: int, config: Any = LAPTOP) -> list[dict[str, Any]]:
    """What a server would send for one game; scripted, so without tokens."""
    from dataclasses import replace

    (episode,) = play_episodes_sync(config, [HintBot()] * config.players, "train", [seed])
    return episode_to_outputs(replace(episode, game=game), model="m")


def test_a_deal_is_asked_for_once_per_player_and_game() -> None:
    rows, owners = rows_of([deal(3), deal(4)], 2)
    assert [(row["data_dict"]["seed"], row["data_dict"]["player"]) for row in rows] == [
        (3, 0),
        (3, 0),
        (3, 1),
        (3, 1),
        (4, 0),
        (4, 0),
        (4, 1),
        (4, 1),
    ]
    assert owners == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [(one.seed, one.rows) for one in group_rows(rows)] == [(3, ((0, 1), (2, 3))), (4, ((4, 5), (6, 7)))]


def test_a_deal_that_is_named_twice_goes_on_counting_its_games() -> None:
    rows, owners = rows_of([deal(3), deal(3)], 2)
    (one,) = group_rows(rows)
    assert one.rows == ((0, 1, 4, 5), (2, 3, 6, 7))
    outputs = [{}] * 8
    for game, (first, second) in enumerate(zip(*one.rows, strict=True)):
        outputs[first], outputs[second] = answers(3, game)
    found = [(owners[row], game.game) for row, game in games_of(rows, outputs, vocab_size=None)]
    assert found == [(0, 0), (0, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "3"}, "seed='3' is no whole number"),
        ({"seed": True}, "seed=True is no whole number"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"suite": "../x"}, "suite='../x'"),
        ({"suite": "a\ud800"}, "suite"),
        ({"suite": None}, "suite=None is no text"),
        ({"player": 2}, "player=2: allowed are 0 to 1"),
        ({"player": 0.0}, "player=0.0 is no whole number"),
        ({"env_config": None}, "request row 0"),
        ({"env_config": {"preset": "nowhere"}}, "nowhere"),
    ],
)
def test_a_row_that_cannot_be_played_is_refused_by_its_number(change: dict[str, Any], message: str) -> None:
    row = {"data_dict": {**deal(3), "player": 0, **change}}
    with pytest.raises(SettingsError, match=r"request row 0") as caught:
        group_rows([row])
    assert message in str(caught.value)


def test_the_games_of_answers_are_those_that_were_asked_for() -> None:
    rows, _ = rows_of([deal(3)], 2)
    first, second = answers(3, 0), answers(3, 1)
    found = games_of(rows, [first[0], second[0], first[1], second[1]], vocab_size=None)
    assert [(row, game.seed, game.game) for row, game in found] == [(0, 3, 0), (1, 3, 1)]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            [*answers(4, 0)],
            "asked for game 0 of deal train/3 on laptop .*the answer is game 0 of deal train/4 on laptop",
        ),
        ([*answers(3, 1)], "asked for game 0 of deal train/3 .*the answer is game 1 of deal train/3"),
        ([answers(3, 0)[0], answers(4, 0)[1]], r"rollout_infos.seed=4, but 3 in output 0"),
        ([answers(3, 0)[0]] * 2, r"got \[0, 0\], a game of 2 players"),
        (
            dropped_to_outputs(DroppedGame(suite="train", seed=3, game=5, reason="x"), num_players=2, model="m"),
            "game 5",
        ),
        ([*answers(3, 0)][:1], "1 answers for 2 rows"),
        ({"detail": "no"}, "a dict instead of a list of answers for 2 rows"),
        ([None, 3], "output 0: the whole object=None"),
    ],
)
def test_a_swapped_doubled_or_missing_game_is_refused_naming_both(outputs: Any, message: str) -> None:
    rows, _ = rows_of([deal(3)], 1)
    with pytest.raises(ServerError, match=message):
        games_of(rows, outputs, vocab_size=None)


def test_a_game_of_another_board_is_refused() -> None:
    rows, _ = rows_of([deal(3)], 1)
    outputs = answers(3, 0)
    for output in outputs:
        output["rollout_infos"]["spec_hash"] = "0000"
    with pytest.raises(ServerError, match=r"board 0000"):
        games_of(rows, outputs, vocab_size=None)


def test_a_return_that_overflows_is_refused() -> None:
    rows, _ = rows_of([deal(3)], 1)
    outputs = answers(3, 0)
    for output in outputs:
        for turn in output["rollout_infos"]["turns"]:
            turn["rewards"] = {"score": 1e308}
    with pytest.raises(NonFiniteError, match="player_0: its return over the game is inf"):
        games_of(rows, outputs, vocab_size=None)
