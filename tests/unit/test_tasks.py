"""What a rollout request asks for, and the one look at its answer."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fake_engine import LAPTOP, task, tasks_of
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.answers import checked_games
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.messages import RolloutAnswer
from hanabi_grpo.types import DroppedGame
from made_games import play_episodes_sync

BOTS = ("hint-bot", "hint-bot")


def game(seed: int, number: int, **other: Any) -> dict[str, Any]:
    """What a server would send for one game; scripted, so without tokens."""
    setup = Setup(HANABI, LAPTOP)
    (episode,) = play_episodes_sync(setup, [make_script(setup, "hint-bot")] * 2, "train", [seed])
    return {**msgspec.to_builtins(replace(episode, game=number, seats=BOTS)), **other}


def answer(*episodes: dict[str, Any], dropped: tuple[tuple[int, int], ...] = ()) -> RolloutAnswer:
    rows = [
        {"task": task, "game": number, "reason": "RuntimeError: no"} for task, number in dropped
    ]
    return msgspec.convert({"episodes": episodes, "dropped": rows}, RolloutAnswer)


def test_a_task_has_its_games_by_number_and_one_that_is_named_twice_goes_on_counting() -> None:
    iggi = {**task(3), "seats": ["iggi", "base"]}
    tasks = tasks_of(task(3), task(4), task(3), iggi, iggi, num_games=2)
    assert [(task.task.seed, task.seats, list(task.games)) for task in tasks] == [
        (3, ("base", "base"), [0, 1]),
        (4, ("base", "base"), [0, 1]),
        (3, ("base", "base"), [2, 3]),
        (3, ("iggi", "base"), [0, 1]),
        (3, ("iggi", "base"), [2, 3]),
    ]


def test_seats_of_the_request_are_those_of_tasks_that_name_none_as_far_as_they_have_players() -> (
    None
):
    three = task(3, EnvConfig(preset="full", players=3))
    assert [task.seats for task in tasks_of(task(3), three, seats=("iggi", "base", "random"))] == [
        ("iggi", "base"),
        ("iggi", "base", "random"),
    ]
    with pytest.raises(
        SettingsError,
        match=r"tasks.0: 2 players, but seats is empty; give the policy of each seat",
    ):
        tasks_of(task(3), seats=None)
    with pytest.raises(
        SettingsError,
        match=r"tasks.1: 3 players, but seats=\('iggi', 'base'\) has 2; give one per player.",
    ):
        tasks_of(task(3), three, seats=("iggi", "base"))


def test_a_task_that_cannot_be_played_is_refused_by_its_number_and_too_many_games_are() -> None:
    for change, message in (
        ({"env_config": {"preset": "nowhere"}}, "tasks.1: env_config: .*nowhere"),
        ({"env": "chess"}, "tasks.1: env='chess': no such environment"),
        ({"env_config": {}}, "tasks.1: env_config: key 'preset' is missing"),
        ({"seats": ["base"]}, r"tasks.1: seats=\('base',\): give a list of 2 seats"),
        (
            {"seats": ["base", "igi"]},
            "tasks.1: 'igi': the environment hanabi has no such script; its .*iggi",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            tasks_of(task(3), {**task(3), **change})
    assert len(tasks_of(task(3), task(4), num_games=16384)) == 2
    with pytest.raises(
        SettingsError, match="2 tasks, num_games=16385: a request may have at most 32768 games"
    ):
        tasks_of(task(3), task(4), num_games=16385)


def test_played_and_dropped_games_come_back_by_task() -> None:
    tasks = tasks_of(task(3), task(4), task(3), num_games=2, seats=BOTS)
    played = checked_games(
        answer(game(3, 1), game(4, 0), game(4, 1), game(3, 2), dropped=((0, 0), (2, 3))), tasks
    )
    assert [[(one.seed, one.game) for one in group] for group in played.groups] == [
        [(3, 1)],
        [(4, 0), (4, 1)],
        [(3, 2)],
    ]
    reason = "RuntimeError: no"
    assert played.dropped == (
        DroppedGame(suite="train", seed=3, game=0, reason=reason),
        DroppedGame(suite="train", seed=3, game=3, reason=reason),
    )


def test_a_swapped_doubled_missing_or_foreign_game_is_refused() -> None:
    first = "requested game 0 of hanabi train 3"
    for given, message in (
        (answer(game(4, 0), game(3, 1)), f"{first} .*received game 0 .*train 4"),
        (answer(game(3, 1), game(3, 0)), f"{first} .*received game 1 of hanabi train 3"),
        (
            answer(game(3, 0), game(3, 0)),
            "requested game 1 of hanabi train 3 .*received game 0 of hanabi train 3",
        ),
        (answer(game(3, 0, spec_hash="0000"), game(3, 1)), "received .*rules 0000"),
        (
            answer(game(3, 0, preset="full"), game(3, 1)),
            "received game 0 of hanabi train 3 on full",
        ),
        (
            answer(game(3, 0, seats=("iggi", "iggi")), game(3, 1)),
            "received .* iggi,iggi in its seats",
        ),
        (answer(game(3, 0)), "1 games and 0 dropped ones for 2 requested"),
        (answer(game(3, 0), game(3, 1), dropped=((0, 1),)), "2 games and 1 dropped ones for 2"),
        (
            answer(game(3, 0), dropped=((0, 2),)),
            "game 1 of hanabi train 3 is missing: neither played nor dropped",
        ),
        (
            answer(dropped=((0, 0), (0, 0))),
            "game 1 of hanabi train 3 is missing: neither played nor dropped",
        ),
    ):
        with pytest.raises(ServerError, match=message):
            checked_games(given, tasks_of(task(3), num_games=2, seats=BOTS))


def test_tokens_without_logprobs_are_refused_and_a_game_whose_return_overflows_is_dropped() -> None:
    tasks = tasks_of(task(3), seats=BOTS)
    row = game(3, 0)
    silent = [{**row["turns"][0], "reply_ids": (1, 2)}, *row["turns"][1:]]
    with pytest.raises(
        ServerError,
        match=r"game 0 of hanabi train 3: turns\.0: 0 logprobs for 2 reply ids; allowed: one each",
    ):
        checked_games(answer({**row, "turns": silent}), tasks)
    rich = [{**turn, "rewards": [{"score": 1e308}] * 2} for turn in row["turns"]]
    result = checked_games(answer({**row, "turns": rich}), tasks)
    assert result.groups == [[]]
    [dropped] = result.dropped
    assert (dropped.seed, dropped.game) == (3, 0)
    assert dropped.reason.startswith(
        "player_0: its return over the game is inf; a return must be finite."
    )
