"""Settings of advantages: what they are called, what a resume keeps, what a view shows, what a checkpoint holds."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from doctor_machines import ROOT, find, only
from hanabi_grpo.commands.doctor.games import batch_checks
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import check_rewards
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.training.advantages import ESTIMATORS, choose_estimator
from hanabi_grpo.training.advantages.estimators import moving_baseline
from hanabi_grpo.training.answers import with_length_penalty
from hanabi_grpo.training.batching import next_baselines
from hanabi_grpo.training.training_state import load_baselines, save_training_state
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

OURS = {
    "HANABI_ADVANTAGE_SCALE": "none",
    "HANABI_WHITEN": "true",
    "HANABI_LOSS_UNIT": "turn",
    "HANABI_LENGTH_PENALTY": "0.01",
    "HANABI_LENGTH_FREE": "64",
    "HANABI_GROUP": "mixed",
}


def _load(environ: dict[str, str]) -> Settings:
    return load_settings(environ, dotenv=Path("/nonexistent/.env")).settings


def test_every_estimator_can_be_chosen_and_defaults_and_limits_are_these() -> None:
    for name in ESTIMATORS:
        assert _load({"HANABI_ADVANTAGE": name}).advantage == name
    plain, given = _load({}), _load(OURS)
    assert (plain.advantage, plain.advantage_scale, plain.whiten, plain.loss_unit) == ("turn", None, False, "token")
    assert (plain.length_penalty, plain.length_free, plain.group) == (0.0, 0, "deal")
    assert (given.advantage_scale, given.whiten, given.loss_unit) == ("none", True, "turn")
    assert (given.length_penalty, given.length_free, given.group) == (0.01, 64, "mixed")
    for name, value, allowed in (
        ("HANABI_ADVANTAGE", "gae", "one of grpo, turn, return_to_go, rloo, reinforce_pp, baseline"),
        ("HANABI_LENGTH_PENALTY", "nan", "a number, at least 0"),
        ("HANABI_LENGTH_FREE", "1.5", "a whole number, at least 0"),
    ):
        with pytest.raises(SettingsError, match=re.escape(f"{name}={value!r}: {allowed}.")):
            _load({name: value})


def _game(number: int, *scores: float, seats: tuple[str, ...] = ()) -> Episode:
    turns = (made_turn(place % 2, rewards={"score": score}) for place, score in enumerate(scores))
    return made_episode(*turns, game=number, seats=seats)


OWN = ("player_0@3", "player_1@3")


def test_baselines_hold_the_trained_seats_games_only() -> None:
    alone, with_bot = _game(0, 1.0, 1.0, seats=OWN), _game(1, 0.0, 0.0, seats=("player_0@3", "iggi"))
    found = next_baselines({}, [[alone], [with_bot]], OWN)
    assert found == {"player_0 x": 1.0, "player_1 x": 2.0}
    # A game that ended before player 1's turn says nothing of player 1.
    assert next_baselines(found, [[_game(0, 4.0)]], OWN) == {"player_0 x": pytest.approx(1.3), "player_1 x": 2.0}
    assert next_baselines(found, [], OWN) == found


def test_baselines_come_back_from_a_checkpoint_bit_by_bit(tmp_path: Path) -> None:
    random.seed(4)
    groups = [[_game(number, *(random.uniform(-3, 25) for _ in range(4))) for number in range(5)] for _ in range(9)]
    whole: dict[str, float] = {}
    for group in groups:
        whole = next_baselines(whole, [group], OWN)
    cut: dict[str, float] = {}
    for step, group in enumerate(groups):
        cut = next_baselines(cut, [group], OWN)
        save_training_state(tmp_path / str(step), {}, [], [], baselines=cut)
        cut = load_baselines(tmp_path / str(step))
    assert cut == whole and len(whole) == 2
    assert moving_baseline(cut)(groups[0], 0) == choose_estimator("baseline", None, whole)(groups[0], 0)


def _said(*lengths: int) -> Episode:
    game = _game(0, *(0.0 for _ in lengths))
    turns = [replace(turn, reply_ids=(5,) * length) for turn, length in zip(game.turns, lengths, strict=True)]
    return replace(game, turns=tuple(turns))


def test_a_long_reply_costs_its_own_turn_and_its_own_player() -> None:
    game = with_length_penalty(_said(2, 5, 10, 0), per_token=0.5, free=4)
    assert [turn.rewards[turn.player].get("length") for turn in game.turns] == [None, -0.5, -3.0, None]
    assert (game.reward(0), game.reward(1)) == (-3.0, -0.5)
    plain = _said(2, 5, 10, 0)
    assert with_length_penalty(plain, per_token=0.0, free=0) is plain
    assert with_length_penalty(plain, per_token=0.5, free=10) is plain


def test_a_weight_of_points_scales_the_teams_part_or_is_refused_where_it_is_divided_out(tmp_path: Path) -> None:
    def games(weight: float) -> list[Episode]:
        turns = [[made_turn(0, rewards={"score": weight * points})] for points in (0, 1, 2)]
        turns[0] = [made_turn(0, rewards={"illegal": -0.5})]
        return [made_episode(*one) for one in turns]

    for scale, scales in ((None, False), ("std", False), ("none", True)):
        one, three = (choose_estimator("turn", scale)(games(weight), 0) for weight in (1.0, 3.0))
        team = [values[0] + (1.0 if number == 0 else 0.0) for number, values in enumerate(one)]
        wanted = [3 * value for value in team] if scales else team
        found = [values[0] + (1.0 if number == 0 else 0.0) for number, values in enumerate(three)]
        assert found == pytest.approx(wanted, abs=1e-3)
    row = [{"env_config": EnvConfig(preset="laptop", reward_score=3.0).model_dump()}]
    with pytest.raises(SettingsError, match=r"HANABI_REWARD_SCORE=3 .* has no effect .* HANABI_ADVANTAGE_SCALE=none"):
        check_rewards(Settings(), row)
    check_rewards(Settings(advantage_scale="none"), row)
    check_rewards(Settings(advantage="rloo"), row)
    check_rewards(Settings(), [{"env_config": EnvConfig(preset="laptop").model_dump()}])
    check = only(find(batch_checks, HANABI_REWARD_SCORE=3, DATASET=ROOT / "data" / "hanabi.laptop.jsonl"))
    assert check.status == "fail" and "HANABI_ADVANTAGE_SCALE=none" in check.finding
