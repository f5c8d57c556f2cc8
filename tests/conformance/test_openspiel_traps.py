"""The reasons for our own validation, shown on OpenSpiel itself.

Where one of these fails after an upgrade, OpenSpiel has been repaired and the check in `GameSpec` may be too strict.
"""

import signal
import subprocess
import sys

import pyspiel
import pytest

from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.errors import GameParameterError

FULL = {
    "players": 2,
    "colors": 5,
    "ranks": 5,
    "hand_size": 5,
    "max_information_tokens": 8,
    "max_life_tokens": 3,
}
OUR_NAMES = {
    "players": "num_players",
    "colors": "num_colors",
    "ranks": "num_ranks",
    "hand_size": "hand_size",
    "max_information_tokens": "max_hints",
    "max_life_tokens": "max_lives",
}


@pytest.mark.parametrize(
    ("values", "ends_by"),
    [
        ({"players": 1}, signal.SIGABRT),
        ({"players": 6}, signal.SIGABRT),
        ({"colors": 0}, signal.SIGABRT),
        ({"ranks": 6}, signal.SIGABRT),
        ({"colors": 2, "ranks": 2}, signal.SIGABRT),
        ({"hand_size": 0}, signal.SIGSEGV),
    ],
)
def test_openspiel_ends_the_process_where_we_raise(values: dict[str, int], ends_by: signal.Signals) -> None:
    code = (
        f"import pyspiel; state = pyspiel.load_game('hanabi', {FULL | values}).new_initial_state()\n"
        "for _ in range(3): state.apply_action(state.legal_actions()[0])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert child.returncode == -ends_by
    with pytest.raises(GameParameterError):
        make_spec("full", **{OUR_NAMES[name]: value for name, value in values.items()})


@pytest.mark.parametrize("values", [{"hand_size": -1}, {"max_life_tokens": 0}, {"max_information_tokens": -1}])
def test_openspiel_loads_a_nonsense_game_where_we_raise(values: dict[str, int]) -> None:
    assert pyspiel.load_game("hanabi", FULL | values).num_players() == 2
    with pytest.raises(GameParameterError):
        make_spec("full", **{OUR_NAMES[name]: value for name, value in values.items()})


def test_rewards_repeat_at_the_chance_node_after_a_play() -> None:
    state = pyspiel.load_game("hanabi", FULL).new_initial_state()
    for card in [0] * 3 + [1] * 2 + [5] * 3 + [6] * 2:  # player 0: R1 R1 R1 R2 R2
        state.apply_action(card)
    state.apply_action(5)  # play slot 0
    assert state.rewards() == [1.0, 1.0]
    assert state.is_chance_node()
    state.apply_action(10)
    assert state.rewards() == [1.0, 1.0]  # no move was made, and the same reward is there again
    assert state.returns() == [1.0, 1.0]
