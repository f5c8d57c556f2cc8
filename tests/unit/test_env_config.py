"""The settings of one game, as people and clients write them."""

import pytest

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.errors import SettingsError

KEYS = (
    "preset, reward_illegal, reward_unparsable, reward_out_of_tokens, players, observation, legal_moves, reward_score, "
    "bomb_rule, max_turns"
)


def test_a_complete_row_is_read() -> None:
    config = EnvConfig.parse(
        {
            "preset": "small",
            "players": 3,
            "observation": "compact",
            "legal_moves": False,
            "reward_score": 2,
            "reward_illegal": -1.0,
            "reward_unparsable": -0.25,
            "reward_out_of_tokens": -3.0,
            "bomb_rule": "keep",
            "max_turns": 40,
        }
    )
    assert config.spec() == make_spec("small", 3)
    assert EnvConfig.parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "env_config: key 'preset' is missing."),
        ({"preset": "laptpo"}, "preset='laptpo': no such board; did you mean 'laptop'?"),
        ({"preset": "full", "players": 7}, "num_players=7: Hanabi needs 2 to 5 players."),
        ({"preset": "laptop", "players": 3}, "num_players=3: preset 'laptop' is for 2 players"),
        ({"preset": "laptop", "players": "2"}, "players='2': Input should be a valid integer"),
        ({"preset": "laptop", "observation": "long"}, "observation='long': Input should be 'full' or 'compact'"),
        ({"preset": "laptop", "legal_moves": 1}, "legal_moves=1: Input should be a valid boolean"),
        ({"preset": "laptop", "reward_score": float("nan")}, "reward_score=nan: Input should be a finite number"),
        ({"preset": "laptop", "bomb_rule": "half"}, "bomb_rule='half': Input should be 'zero' or 'keep'"),
        ({"preset": "laptop", "max_turns": -1}, "max_turns=-1: Input should be greater than or equal to 0"),
        (
            {"preset": "laptop", "max_turn": 9},
            f"unknown key 'max_turn', did you mean 'max_turns'? allowed: {KEYS}.",
        ),
    ],
)
def test_a_bad_row_is_refused_with_key_value_and_what_is_allowed(row: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        EnvConfig.parse(row)
    assert message in str(caught.value)
