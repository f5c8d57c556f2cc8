"""Whether a model's tokenizer knows the words of the games that it is trained on."""

from typing import Any

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.vocabulary import check_vocabulary, game_words, unknown_words
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer(compact_vocabulary(make_spec("laptop")))


def hanabi(preset: str, players: int = 2, observation: str = "compact") -> Setup[Any]:
    return registry.setup("hanabi", {"preset": preset, "players": players, "observation": observation})


def test_a_model_knows_its_own_board_and_misses_exactly_what_another_one_has_more() -> None:
    expected = {hanabi("laptop"): set(), hanabi("marshal-mini"): {"life2", "life3"}}
    assert {setup: set(unknown_words(game_words(setup), TOKENIZER)) for setup in expected} == expected
    assert {"life2", "life3", "left3"} < set(unknown_words(game_words(hanabi("mini", 3)), TOKENIZER))


def test_every_board_is_looked_at_and_the_message_has_the_command_that_helps() -> None:
    with pytest.raises(SettingsError) as caught:
        check_vocabulary((hanabi("laptop"), hanabi("marshal-mini"), hanabi("full")), TOKENIZER, "data/tiny-model")
    text = str(caught.value)
    words = len(game_words(hanabi("marshal-mini")))
    assert text.startswith(
        f"MODEL=data/tiny-model: its tokenizer does not know 2 of {words} words of marshal-mini (compact): "
    )
    assert "words of full (compact): " in text
    assert text.endswith(
        "hanabi-grpo tiny-model --preset laptop --preset marshal-mini --preset full --players 2, and set "
        "MODEL=outputs/tiny-laptop-marshal-mini-full; or choose another MODEL."
    )


def test_another_environments_words_and_readable_text_are_too_much_for_a_tokenizer_of_compact_words() -> None:
    with pytest.raises(SettingsError, match=r"words of laptop \(full\).*With HANABI_OBSERVATION=compact, make a model"):
        check_vocabulary((hanabi("laptop", observation="full"),), TOKENIZER, "tiny")
    with pytest.raises(
        SettingsError, match=r"of kuhn: .*tiny-model --env kuhn --preset kuhn, and .*outputs/tiny-kuhn;"
    ):
        check_vocabulary((registry.setup("kuhn", {}),), TOKENIZER, "tiny")
    check_vocabulary((registry.setup("kuhn", {}),), build_tokenizer(game_words(registry.setup("kuhn", {}))), "tiny")
