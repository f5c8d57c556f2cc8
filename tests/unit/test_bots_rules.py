"""What bots work out, and the two rules that are easy to get wrong, on positions made by hand.

Ranks count from 0. The other rules: `test_hanabi_environment`, move for move, and
`conformance/test_bot_scores`, by published scores.
"""

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.policies import rules
from hanabi_grpo.envs.hanabi.policies.rules import Rule
from hanabi_grpo.envs.hanabi.rules import (
    Action,
    Card,
    Game,
    Knowledge,
    PlayerView,
    make_spec,
    shuffled_deck,
)
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs

R1, R2, R3, R4, R5 = (Card(0, rank) for rank in range(5))
Y1, Y2, Y3, Y4, Y5 = (Card(1, rank) for rank in range(5))

BOARD = make_spec("full", 3)
ALL = (0, 1, 2, 3, 4)


def know(colors: Sequence[int] = ALL, ranks: Sequence[int] = ALL) -> Knowledge:
    """Return what hints say about a card; colours and ranks from 0."""
    return Knowledge(
        colors=tuple(colors),
        ranks=tuple(ranks),
        color_hinted=len(colors) == 1,
        rank_hinted=len(ranks) == 1,
    )


NOTHING = know()
"""What is known of a card without hints."""


def view(
    *,
    own: Sequence[Knowledge] = (NOTHING,) * 5,
    hands: Sequence[Sequence[tuple[Card, Knowledge]]] = ((), ()),
    fireworks: tuple[int, ...] = (0, 0, 0, 0, 0),
    discards: tuple[Card, ...] = (),
    hints: int = 4,
) -> PlayerView:
    """Return the view of seat 0 of three.

    Args:
        own: What hints say about the own cards.
        hands: Cards of seats 1 and 2, with what their holders know.
        fireworks: Cards on each stack.
        discards: The discarded cards.
        hints: Hint tokens left.
    """
    cards: list[tuple[Card, ...]] = [()]
    knowledge = [tuple(own)]
    for hand in hands:
        cards.append(tuple(card for card, _ in hand))
        knowledge.append(tuple(known for _, known in hand))
    start = Game(BOARD, shuffled_deck(BOARD, "train", 0)).view(0)
    return start._replace(
        own_hand=tuple(own),
        hands=tuple(cards),
        knowledge=tuple(knowledge),
        fireworks=fireworks,
        discards=discards,
        hints=hints,
    )


def apply(rule: Rule, position: PlayerView, seed: int = 0) -> Action | None:
    return rule(Beliefs(position), random.Random(seed))


def unseen_cards(game: Game, position: PlayerView) -> Counter[Card]:
    """Return the cards that a player sees neither on the table nor in another hand."""
    unseen = Counter(game.deck)
    unseen -= Counter(position.discards)
    for hand in position.hands:
        unseen -= Counter(hand)
    for color, height in enumerate(position.fireworks):
        unseen -= Counter(Card(color, rank) for rank in range(height))
    return unseen


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_beliefs_count_the_unseen_cards_that_hints_allow(
    preset: str, num_players: int, rng
) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    for player in range(num_players):
        position = game.view(player)
        unseen = unseen_cards(game, position)
        beliefs = Beliefs(position)
        for known in position.own_hand:
            num_possible = 0
            num_fitting = 0
            for card, count in unseen.items():
                if card.color in known.colors and card.rank in known.ranks:
                    num_possible += count
                    if position.fireworks[card.color] == card.rank:
                        num_fitting += count
            assert beliefs.chance_to_fit(known) == float(Fraction(num_fitting, num_possible))
            assert beliefs.surely_fits(known) == (num_fitting == num_possible)


@pytest.mark.parametrize(
    ("card", "known", "fireworks", "kind"),
    [
        (R4, NOTHING, (5, 0, 0, 0, 0), "hint_color"),
        (R4, know([0]), (5, 0, 0, 0, 0), "hint_rank"),
        (R4, know([0], [3]), (5, 0, 0, 0, 0), None),
        (R1, NOTHING, (2, 1, 1, 1, 1), "hint_rank"),
        (R1, know(ranks=[0]), (2, 1, 1, 1, 1), None),
        (R2, NOTHING, (2, 1, 1, 1, 1), None),
        (R2, know([0]), (2, 1, 1, 1, 1), "hint_rank"),
        (R2, know(ranks=[1]), (2, 1, 1, 1, 1), "hint_color"),
        (R3, know([0]), (2, 1, 1, 1, 1), None),
    ],
)
def test_tell_dispensable_tells_what_shows_that_a_card_is_useless(
    card, known, fireworks, kind
) -> None:
    position = view(hands=[[], [(card, known)]], fireworks=fireworks)
    expected = {
        "hint_color": Action("hint_color", target=2, value=card.color),
        "hint_rank": Action("hint_rank", target=2, value=card.rank),
        None: None,
    }[kind]
    assert apply(rules.tell_dispensable, position) == expected
    assert apply(rules.tell_dispensable, position._replace(hints=0)) is None


@pytest.mark.parametrize(
    ("known", "fireworks", "discards", "discarded"),
    [
        (know([0]), (5, 0, 0, 0, 0), (), True),
        (know([0]), (4, 5, 5, 5, 5), (), False),
        (know([0], [1]), (2, 0, 0, 0, 0), (), True),
        (know([0], [2]), (2, 0, 0, 0, 0), (), False),
        (know(ranks=[0]), (1, 1, 2, 1, 1), (), True),
        (know(ranks=[1]), (2, 1, 2, 2, 2), (), False),
        (know([0], [3]), (1, 0, 0, 0, 0), (R3, R3), True),
        (know([0], [2, 3, 4]), (1, 0, 0, 0, 0), (R2, R2), True),
        (know([0], [2, 3]), (1, 0, 0, 0, 0), (R4, R4), False),
        (know(ranks=[4]), (0, 0, 0, 0, 0), (R5, Y5, Card(2, 4), Card(3, 4), Card(4, 4)), True),
        (know(ranks=[4]), (0, 0, 0, 0, 0), (R5, Y5, Card(2, 4), Card(3, 4)), False),
    ],
)
def test_osawa_discards_what_can_no_longer_score_and_keeps_the_rest(
    known, fireworks, discards, discarded
) -> None:
    position = view(own=[NOTHING, known, known], fireworks=fireworks, discards=discards)
    expected = Action("discard", slot=1) if discarded else None
    assert apply(rules.osawa_discard, position) == expected
    assert apply(rules.osawa_discard, position._replace(hints=8)) is None
