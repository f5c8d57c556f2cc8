"""The game that options choose, and the settings that depend on it."""

import pytest

from hanabi_grpo.evaluation.chosen import choose
from hanabi_grpo.settings import load_settings


def test_the_longest_reply_is_that_of_the_chosen_game_unless_it_is_set() -> None:
    cpu = ("cpu", "for this test")
    loaded = load_settings({"HANABI_ENV": "hanabi"}, device=cpu)
    assert choose(None, None, None, None, loaded=loaded).max_tokens == 4
    # A call of its tool includes an argument.
    with_tool = choose("vote", "vote-calculator", None, None, loaded=loaded)
    assert with_tool.max_tokens == 16
    chosen_length = load_settings({"MAX_COMPLETION_LENGTH": "7"}, device=cpu)
    assert choose("vote", "vote-calculator", None, None, loaded=chosen_length).max_tokens == 7


@pytest.mark.parametrize(("thinking", "longest"), [("0", 512), ("1", 2048)])
def test_on_a_gpu_every_game_has_the_same_longest_reply(thinking: str, longest: int) -> None:
    environ = {"HANABI_THINKING": thinking, "HANABI_MAX_MODEL_LEN": "40960"}
    loaded = load_settings(environ, device=("gpu", "for this test"))
    for env, preset in (("hanabi", "full"), ("vote", "vote-calculator")):
        assert choose(env, preset, None, None, loaded=loaded).max_tokens == longest
