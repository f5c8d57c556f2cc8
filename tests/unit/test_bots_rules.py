"""What bots work out, and the two rules that are easy to get wrong, on positions made by hand; ranks count from 0.

The other rules: `test_hanabi_environment`, move for move, and `conformance/test_bot_scores`, by published scores.
"""

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.policies import focus, rules
from hanabi_grpo.envs.hanabi.policies.rules import Rule
from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, Knowledge, PlayerView, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Event

R1, R2, R3, R4, R5 = (Card(0, rank) for rank in range(5))
Y1, Y2, Y3, Y4, Y5 = (Card(1, rank) for rank in range(5))


BOARD = make_spec("full", 3)
ALL = (0, 1, 2, 3, 4)


def know(colors: Sequence[int] = ALL, ranks: Sequence[int] = ALL) -> Knowledge:
    """Return what hints have told about a card; colours and ranks from 0."""
    return Knowledge(tuple(colors), tuple(ranks), len(colors) == 1, len(ranks) == 1)


def view(
    *,
    own: Sequence[Knowledge] = (know(),) * 5,
    hands: Sequence[Sequence[tuple[Card, Knowledge]]] = ((), ()),
    fireworks: tuple[int, ...] = (0, 0, 0, 0, 0),
    discards: tuple[Card, ...] = (),
    hints: int = 4,
) -> PlayerView:
    """Return the view of seat 0 of three; `hands` are those of seats 1 and 2 with what their holders know."""
    return (
        Game(BOARD, shuffled_deck(BOARD, "train", 0))
        .view(0)
        ._replace(
            own_hand=tuple(own),
            hands=((), *(tuple(card for card, _ in hand) for hand in hands)),
            knowledge=(tuple(own), *(tuple(known for _, known in hand) for hand in hands)),
            fireworks=fireworks,
            discards=discards,
            hints=hints,
        )
    )


def apply(rule: Rule, position: PlayerView, seed: int = 0) -> Action | None:
    return rule(Beliefs(position), random.Random(seed))


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_beliefs_count_the_unseen_cards_that_hints_allow(preset: str, num_players: int, rng) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    for player in range(num_players):
        seen = game.view(player)
        unseen = Counter(game.deck) - Counter(seen.discards) - Counter(card for hand in seen.hands for card in hand)
        unseen -= Counter(Card(color, rank) for color, height in enumerate(seen.fireworks) for rank in range(height))
        beliefs = Beliefs(seen)
        for known in seen.own_hand:
            possible = Counter({c: n for c, n in unseen.items() if c.color in known.colors and c.rank in known.ranks})
            fitting = sum(n for card, n in possible.items() if seen.fireworks[card.color] == card.rank)
            assert beliefs.chance_to_fit(known) == float(Fraction(fitting, possible.total()))
            assert beliefs.surely_fits(known) == (fitting == possible.total())


@pytest.mark.parametrize(
    ("card", "known", "fireworks", "kind"),
    [
        (R4, know(), (5, 0, 0, 0, 0), "hint_color"),
        (R4, know([0]), (5, 0, 0, 0, 0), "hint_rank"),
        (R4, know([0], [3]), (5, 0, 0, 0, 0), None),
        (R1, know(), (2, 1, 1, 1, 1), "hint_rank"),
        (R1, know(ranks=[0]), (2, 1, 1, 1, 1), None),
        (R2, know(), (2, 1, 1, 1, 1), None),
        (R2, know([0]), (2, 1, 1, 1, 1), "hint_rank"),
        (R2, know(ranks=[1]), (2, 1, 1, 1, 1), "hint_color"),
        (R3, know([0]), (2, 1, 1, 1, 1), None),
    ],
)
def test_tell_dispensable_tells_what_shows_that_a_card_is_useless(card, known, fireworks, kind) -> None:
    position = view(hands=[[], [(card, known)]], fireworks=fireworks)
    value = card.color if kind == "hint_color" else card.rank
    expected = None if kind is None else Action(kind, target=2, value=value)
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
def test_osawa_discards_what_can_no_longer_score_and_keeps_the_rest(known, fireworks, discards, discarded) -> None:
    position = view(own=[know(), known, known], fireworks=fireworks, discards=discards)
    assert apply(rules.osawa_discard, position) == (Action("discard", slot=1) if discarded else None)
    assert apply(rules.osawa_discard, position._replace(hints=8)) is None


def told(*touched: int, target: int = 0, by: int = 2) -> Event:
    """Return a hint of rank 1 that touched these slots."""
    return Event(by, Action("hint_rank", target=target, value=0), touched=touched)


@pytest.mark.parametrize(
    ("events", "own", "lives", "slot"),
    [
        ((told(0, 2),), [know(), know(), know(ranks=[0])], 3, 2),
        # The last hint counts, though another player has moved since.
        ((told(0), told(1, by=1), Event(2, Action("discard", slot=0))), [know()] * 3, 3, 1),
        ((told(0, target=1),), [know()] * 3, 3, None),
        # It was answered, or ignored, by then.
        ((told(0), Event(0, Action("discard", slot=1)), Event(1, Action("discard", slot=0))), [know()] * 3, 3, None),
        ((told(0),), [know(ranks=[4])], 3, None),
        ((told(0),), [know()], 1, None),
    ],
)
def test_the_newest_touched_card_is_played_if_it_may_fit(events, own, lives, slot) -> None:
    position = view(own=own)._replace(events=events, lives=lives)
    assert apply(focus.play_focus, position) == (None if slot is None else Action("play", slot=slot))


@pytest.mark.parametrize(
    ("hand", "hint"),
    [
        # By rank the newest is R1; by colour it would be R3.
        ([(R1, know()), (R3, know())], ("hint_rank", 0)),
        # Of two cards that fit the last of its colour comes first.
        ([(Y5, know()), (R1, know())], ("hint_color", 1)),
        # It knows that this one fits.
        ([(R1, know([0], [0]))], None),
        # What would be read as one to play does not fit.
        ([(R2, know()), (R4, know())], None),
    ],
)
def test_a_hint_is_about_the_newest_card_that_it_touches(hand, hint) -> None:
    position = view(hands=[hand, []], fireworks=(0, 4, 0, 0, 0))
    expected = None if hint is None else Action(hint[0], target=1, value=hint[1])
    assert apply(focus.tell_focus, position) == expected
    assert apply(focus.tell_focus, position._replace(hints=0)) is None


@pytest.mark.parametrize(
    ("hand", "discards", "saved"),
    [
        # A 5 cannot fit yet, so that its holder keeps it.
        ([(R5, know()), (Y3, know())], (), True),
        # Told before, it is not the next to go; the next one is no last copy.
        ([(R5, know(ranks=[4])), (Y3, know())], (), False),
        ([(R5, know(ranks=[4])), (Y3, know())], (Y3,), True),
        # Its holder will play instead.
        ([(R5, know()), (Y1, know([1], [0]))], (), False),
    ],
)
def test_the_last_copy_on_the_chop_is_saved(hand, discards, saved) -> None:
    action = apply(focus.save_chop, view(hands=[hand, []], discards=discards))
    assert (action is not None and action.kind.startswith("hint")) == saved


def test_with_all_hints_there_a_harmless_one_is_given_and_what_is_dead_or_untold_goes() -> None:
    position = view(hands=[[(R4, know()), (Y4, know()), (R2, know())], []], hints=8)
    assert apply(focus.tell_harmless, position) == Action("hint_rank", target=1, value=3)
    assert apply(focus.tell_harmless, position._replace(hints=7)) is None
    dead = view(own=[know(ranks=[1]), know(), know(ranks=[0])], fireworks=(1, 1, 1, 1, 1))
    assert apply(focus.discard_dead, dead) == Action("discard", slot=2)
    assert apply(focus.discard_chop, dead) == Action("discard", slot=1)
    assert apply(focus.discard_chop, view(own=[know(ranks=[1])])) == Action("discard", slot=0)
    assert apply(focus.play_likeliest, view(own=[know(), know(ranks=[0])])) == Action("play", slot=1)
    assert apply(focus.play_likeliest, view(own=[know()])) is None
