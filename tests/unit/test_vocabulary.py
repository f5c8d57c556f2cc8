"""Whether a model's tokenizer knows the words of the games that it is trained on."""

import pytest

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.vocabulary import check_vocabulary, game_words, unknown_words
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

LAPTOP = EnvConfig(preset="laptop", observation="compact")
TOKENIZER = build_tokenizer(compact_vocabulary(make_spec("laptop")))


def compact(preset: str, players: int = 2) -> EnvConfig:
    return EnvConfig(preset=preset, players=players, observation="compact")


def test_a_model_knows_its_own_board_and_misses_exactly_what_another_one_has_more() -> None:
    assert unknown_words(LAPTOP, TOKENIZER) == ()
    assert unknown_words(compact("marshal-mini"), TOKENIZER) == ("life2", "life3")
    assert unknown_words(compact("mini", 3), TOKENIZER)[:3] == ("life2", "life3", "left3")


def test_every_board_is_looked_at_and_the_message_has_the_command_that_helps() -> None:
    with pytest.raises(SettingsError) as caught:
        check_vocabulary((LAPTOP, compact("marshal-mini"), compact("full")), TOKENIZER, "data/tiny-model")
    text = str(caught.value)
    words = len(compact_vocabulary(make_spec("marshal-mini")))
    assert text.startswith(
        f"MODEL=data/tiny-model: its tokenizer does not know 2 of {words} words of marshal-mini (compact): life2, "
        "life3; "
    )
    assert "words of full (compact): life2, life3, info4, info5, info6, …." in text
    assert text.endswith(
        "hanabi-grpo tiny-model --preset laptop --preset marshal-mini --preset full --players 2, and set "
        "MODEL=outputs/tiny-laptop-marshal-mini-full; or choose another MODEL."
    )


def test_readable_text_is_too_much_for_a_tokenizer_of_compact_words() -> None:
    full = EnvConfig(preset="laptop", observation="full")
    assert len(game_words(full)) > 50
    with pytest.raises(SettingsError, match=r"words of laptop \(full\).*With HANABI_OBSERVATION=compact, make a model"):
        check_vocabulary((full,), TOKENIZER, "tiny")
