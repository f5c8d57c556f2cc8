"""The exchange of hidden cards by which `envs.conformance` shows that no view and no prompt depends on them."""

import random

from hanabi_grpo.envs.hanabi.rules import Action, Game, make_spec
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hidden_cards import swap_own_cards


def test_a_partner_sees_the_swap() -> None:
    rng = random.Random(1)
    spec = make_spec("full", 3)
    game = Game(spec, sorted_deck(5, 5))
    other = swap_own_cards(game, 0, rng)
    assert other is not None
    assert other.view(1).hands[0] != game.view(1).hands[0]


def test_no_swap_is_found_when_hints_have_told_everything() -> None:
    spec = make_spec("mini", 5)
    game = Game(spec, sorted_deck(2, 2))  # R1 R1 R1 R2 Y1, one card each
    game.apply(Action("hint_color", target=3, value=0))
    game.apply(Action("hint_rank", target=3, value=1))
    assert swap_own_cards(game, 3, random.Random(0)) is None
