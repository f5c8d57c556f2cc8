"""The named rules, one by one, on positions made by hand; ranks in cards and knowledge count from 0."""

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.policies import rules
from hanabi_grpo.envs.hanabi.policies.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.policies.rules import Rule
from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, Knowledge, PlayerView, make_spec, shuffled_deck

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
    lives: int = 3,
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
            lives=lives,
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


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_a_stack_reaches_as_far_as_one_copy_of_every_card_is_left(preset: str, num_players: int) -> None:
    rng = random.Random(4)
    for _ in range(20):
        game = random_game(make_spec(preset, num_players), rng)
        seen = game.view(0)
        left = Counter(game.deck) - Counter(seen.discards)
        for color, height in enumerate(reachable_heights(seen)):
            assert all(left[Card(color, rank)] for rank in range(height))
            assert height == seen.num_ranks or not left[Card(color, height)]


def test_play_if_certain_wants_both_attributes_known() -> None:
    own = [know(ranks=[0]), know([1], [1]), know([1], [0]), know([0], [0])]
    assert apply(rules.play_if_certain, view(own=own)) == Action("play", slot=2)
    assert apply(rules.play_if_certain, view(own=own[:2])) is None


def test_play_safe_card_plays_what_fits_whatever_it_is() -> None:
    own = [know(), know(ranks=[0]), know([0], [0])]
    assert apply(rules.play_safe_card, view(own=own)) == Action("play", slot=1)
    assert apply(rules.play_safe_card, view(own=own, fireworks=(0, 1, 0, 0, 0))) == Action("play", slot=2)
    assert apply(rules.play_safe_card, view(own=own, fireworks=(1, 1, 0, 0, 0))) is None


def test_play_probably_safe_takes_the_newest_of_the_likeliest_at_or_above_its_threshold() -> None:
    # Of a red card 3 in 10 are 1s; of a card of rank 1 or 2 they are 15 in 25.
    own = [know(ranks=[0, 1]), know([0]), know([0]), know(ranks=[0, 1]), know([0])]
    assert apply(rules.play_probably_safe(0.6), view(own=own)) == Action("play", slot=3)
    assert apply(rules.play_probably_safe(0.61), view(own=own)) is None
    assert apply(rules.play_probably_safe(0.3), view(own=own[1:3])) == Action("play", slot=1)
    assert apply(rules.play_probably_safe(0.0), view(own=[know([0], [1]), know([0], [2])])) == Action("play", slot=1)


@pytest.mark.parametrize("rule", [rules.tell_anyone_about_useful_card, rules.tell_playable_card_outer])
def test_a_useful_card_is_told_by_rank_first_then_by_colour(rule: Rule) -> None:
    hand = [(R3, know()), (R1, know([0], [0])), (Y1, know(ranks=[0])), (R1, know())]
    assert apply(rule, view(hands=[hand, []])) == Action("hint_color", target=1, value=1)
    assert apply(rule, view(hands=[hand[3:], []])) == Action("hint_rank", target=1, value=0)
    assert apply(rule, view(hands=[hand[:2], []])) is None
    assert apply(rule, view(hands=[hand, []], hints=0)) is None


def test_only_the_outer_rule_stops_at_the_next_player() -> None:
    far = view(hands=[[(R3, know())], [(Y1, know())]])
    assert apply(rules.tell_anyone_about_useful_card, far) == Action("hint_rank", target=2, value=0)
    assert apply(rules.tell_playable_card_outer, far) is None


def test_tell_unknown_names_the_colour_of_the_next_players_first_card_that_lacks_something() -> None:
    hand = [(R3, know([0], [2])), (Y2, know([1])), (R1, know())]
    assert apply(rules.tell_unknown, view(hands=[hand, []])) == Action("hint_rank", target=1, value=1)
    assert apply(rules.tell_unknown, view(hands=[hand[2:], []])) == Action("hint_color", target=1, value=0)
    assert apply(rules.tell_unknown, view(hands=[hand[:1], hand])) is None
    assert apply(rules.tell_unknown, view(hands=[hand, []], hints=0)) is None


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


def test_tell_randomly_reaches_every_true_hint_to_the_next_player_and_nothing_else() -> None:
    position = view(hands=[[(R3, know()), (Y1, know())], [(R5, know())]])
    told = {apply(rules.tell_randomly, position, seed) for seed in range(50)}
    assert told == {Action("hint_color", target=1, value=value) for value in (0, 1)} | {
        Action("hint_rank", target=1, value=value) for value in (0, 2)
    }
    assert apply(rules.tell_randomly, position._replace(hints=0)) is None
    assert apply(rules.tell_randomly, view(hands=[[], [(R5, know())]])) is None


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


def test_the_rules_fall_silent_rather_than_fail_in_every_position() -> None:
    everything = [getattr(rules, name) for name in dir(rules) if name.startswith(("tell_", "discard_", "osawa"))]
    everything += [rules.play_if_certain, rules.play_safe_card, rules.play_probably_safe(0.0)]
    assert len(everything) == 12
    rng = random.Random(2)
    for preset, num_players in ALL_BOARDS:
        for rule, _ in product(everything, range(5)):
            game = random_game(make_spec(preset, num_players), rng)
            if not game.is_over:
                move = apply(rule, game.view(game.current_player))
                assert move is None or move in game.legal_actions()
