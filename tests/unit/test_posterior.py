"""Exact beliefs: against all decks replayed one by one, and against the frequencies of games."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import FORFEIT, Observation, Setup
from hanabi_grpo.envs.draws import chances_of
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_move
from hanabi_grpo.envs.hanabi.prompts.compact import compact_vocabulary
from hanabi_grpo.envs.hanabi.rules import Game, parse_action
from hanabi_grpo.envs.hanabi.rules.deals import numbered_deck
from hanabi_grpo.envs.posterior import (
    Chances,
    Tracker,
    check_setup,
    entropy,
    marginals,
    script_chances,
)
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.vocabulary import game_words
from hanabi_grpo.types import ALL_STARTS, Episode

COMPACT = {"observation": "compact", "legal_moves": False}
LAPTOP = registry.setup("hanabi", {"preset": "laptop", **COMPACT})
KUHN = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
LEDUC = registry.setup("leduc_poker", {"preset": "leduc_poker"})
NUM_DECKS = 1120


def played(setup: Setup[Any], name: str, seed: int) -> Episode:
    policies = {player: setup.environment.policies[name]() for player in range(2)}
    return play_scripts(setup.task("eval", seed), policies)


def advance(tracker: Tracker, action: str, chances: Chances) -> Mapping[int, Any]:
    mover = tracker.mover()
    assert mover is not None
    seen = tracker.observations(mover)
    return tracker.advance(action, dict(zip(seen, chances(list(seen.values())), strict=True)))


def hands_by_brute_force(
    bot: str, moves: list[Any], game: Game, player: int, *, by_rules: bool
) -> dict[tuple[str, ...], float]:
    """Deal each of all decks, make the same moves, and keep what looks the same to the player."""
    weights: dict[tuple[str, ...], float] = defaultdict(float)
    for number in range(NUM_DECKS):
        deck = numbered_deck(game.spec, number)
        other = Game(game.spec, deck)
        for move in moves:
            if move not in other.legal_actions():
                break
            other.apply(move)
        else:
            if other.view(player) != game.view(player):
                continue
            weight = 1.0
            replayed = Game(game.spec, deck)
            for move in moves:
                mover = replayed.current_player
                if mover != player and not by_rules:
                    view = replayed.view(mover)
                    weight *= chances_of(partial(rule_move, bot, view)).get(move, 0.0)
                replayed.apply(move)
            weights[tuple(map(str, other.hands[player]))] += weight
    total = sum(weights.values())
    return {hand: weight / total for hand, weight in weights.items() if weight}


@pytest.mark.parametrize("bot", ["hint-bot", "outer"])
def test_a_posterior_is_that_of_all_decks_replayed_one_by_one(bot: str) -> None:
    num_compared = 0
    for seed in (0, 3):
        episode = played(LAPTOP, bot, seed)
        start = LAPTOP.environment.reset(LAPTOP.config, split="eval", seed=seed)
        tracker = Tracker(LAPTOP, start)
        chances = script_chances(LAPTOP, bot, 0)
        game = start.copy().table
        moves: list[Any] = []
        for turn in episode.turns:
            for by_rules in (True, False):
                expected = hands_by_brute_force(bot, moves, game, turn.player, by_rules=by_rules)
                belief = tracker.belief(turn.player, by_rules=by_rules)
                possible = {hand: chance for hand, chance in belief.items() if chance}
                assert possible == pytest.approx(expected)
                num_compared += len(expected) > 1
            move = parse_action(turn.action, num_players=2, player=turn.player)
            moves.append(move)
            game.apply(move)
            advance(tracker, turn.action, chances)
    assert num_compared >= 8


def test_after_the_first_hint_of_a_deal_the_partner_believes_what_the_example_says() -> None:
    start = LAPTOP.environment.reset(LAPTOP.config, split="eval", seed=7)
    tracker = Tracker(LAPTOP, start)
    advance(tracker, "Hint 1", script_chances(LAPTOP, "iggi", 0))
    # It sees R1 R2 Y1, so that its own two 1s are of R1, R1, Y1 and Y1, and Y2 is its third card.
    assert tracker.belief(1) == pytest.approx(
        {
            ("R1", "R1", "Y2"): 1 / 6,
            ("R1", "Y1", "Y2"): 1 / 3,
            ("Y1", "R1", "Y2"): 1 / 3,
            ("Y1", "Y1", "Y2"): 1 / 6,
        }
    )


def test_what_a_player_expects_another_to_believe_is_the_mean_over_what_it_may_see() -> None:
    episode = played(LAPTOP, "outer", 3)
    chances = script_chances(LAPTOP, "outer", 0)
    start = LAPTOP.environment.reset(LAPTOP.config, split="eval", seed=3)
    tracker = Tracker(LAPTOP, start)
    actions = [turn.action for turn in episode.turns]
    for number, action in enumerate(actions[:2]):
        player = tracker.mover()
        assert player is not None
        other = 1 - player
        expected: list[dict[str, float]] = [defaultdict(float) for _ in range(3)]
        total = 0.0
        for seed in range(NUM_DECKS):
            # In each world that the player considers, a tracker of its own.
            world = LAPTOP.environment.reset(LAPTOP.config, split=ALL_STARTS, seed=seed)
            if world.view(player) != start.view(player):
                continue
            own = Tracker(LAPTOP, world)
            likelihood = 1.0
            for earlier in actions[:number]:
                mover = own.mover()
                if mover is None or earlier not in (own.game.legal(mover) or ()):
                    likelihood = 0.0
                    break
                [by_action] = chances([Observation(own.game, mover, window=1)])
                if mover == other:
                    likelihood *= by_action.get(earlier, 0.0)
                if not by_action.get(earlier, 0.0):
                    likelihood = 0.0
                    break
                advance(own, earlier, chances)
            if not likelihood or own.game.view(player) != tracker.game.view(player):
                continue
            total += likelihood
            for slot, marginal in enumerate(marginals(own.belief(other))):
                for answer, chance in marginal.items():
                    expected[slot][answer] += likelihood * chance
        for slot, marginal in enumerate(tracker.others_marginals(player, other)):
            wanted = {answer: chance / total for answer, chance in expected[slot].items()}
            assert marginal == pytest.approx(wanted)
        advance(tracker, action, chances)


@pytest.mark.rest
@pytest.mark.parametrize(("setup", "num_games"), [(KUHN, 3000), (LEDUC, 400)])
def test_the_other_card_is_as_frequent_in_games_of_poker_as_the_posterior_says(
    setup: Setup[Any], num_games: int
) -> None:
    chances = script_chances(setup, "cfr-10", 0)
    expected: dict[tuple[Hashable, str], float] = defaultdict(float)
    variance: dict[tuple[Hashable, str], float] = defaultdict(float)
    frequency: Counter[tuple[Hashable, str]] = Counter()
    for seed in range(num_games):
        episode = played(setup, "cfr-10", seed)
        start = setup.environment.reset(setup.config, split="eval", seed=seed)
        tracker = Tracker(setup, start)
        for turn in episode.turns:
            view = tracker.game.view(turn.player)
            key = view if setup is KUHN else len(view.information)
            [truth] = tracker.game.truths(turn.player)
            frequency[key, truth] += 1
            [marginal] = marginals(tracker.belief(turn.player))
            assert math.fsum(marginal.values()) == pytest.approx(1)
            for answer, chance in marginal.items():
                expected[key, answer] += chance
                variance[key, answer] += chance * (1 - chance)
            advance(tracker, turn.action, chances)
    for key, total in expected.items():
        assert abs(frequency[key] - total) <= 4.5 * math.sqrt(variance[key]) + 1e-6


def test_a_player_that_knows_how_its_partner_plays_is_surprised_as_often_as_it_expects() -> None:
    chances = script_chances(LAPTOP, "outer", 0)
    gaps = []
    gained = []
    for seed in range(40):
        episode = played(LAPTOP, "outer", seed)
        start = LAPTOP.environment.reset(LAPTOP.config, split="eval", seed=seed)
        tracker = Tracker(LAPTOP, start)
        gap = 0.0
        gain = 0.0
        for turn in episode.turns:
            truth = tuple(tracker.game.truths(turn.player))
            belief = tracker.belief(turn.player)
            by_rules = tracker.belief(turn.player, by_rules=True)
            gap += -math.log2(belief[truth]) - entropy(belief)
            gain += math.log2(belief[truth] / by_rules[truth])
            advance(tracker, turn.action, chances)
        gaps.append(gap)
        gained.append(gain)
    center = sum(gaps) / len(gaps)
    error = math.sqrt(sum((gap - center) ** 2 for gap in gaps)) / len(gaps)
    assert abs(center) < 4 * error
    assert sum(gained) > 1, "what the partner's moves say beyond the rules helps on average"


def test_a_move_shifts_the_other_player_by_what_it_shows_and_by_what_its_choice_says() -> None:
    start = LAPTOP.environment.reset(LAPTOP.config, split=ALL_STARTS, seed=0)
    # R1 R1 R1 · R2 Y1 Y1 · Y1 Y2: the sorted deck. Nobody knows how player_0 plays.
    tracker = Tracker(LAPTOP, start)
    even = script_chances(LAPTOP, "random", 0)
    shift = advance(tracker, "Hint 2", even)[1]
    assert shift.by_rules < shift.before
    assert shift.by_rules == pytest.approx(entropy(tracker.belief(1, by_rules=True)))
    assert tracker.belief(1) != tracker.belief(1, by_rules=True), (
        "a hint is drawn from the more moves the more kinds of cards there are"
    )
    assert shift.after == pytest.approx(entropy(tracker.belief(1)))


def test_moves_that_a_policy_never_makes_are_refused() -> None:
    start = LAPTOP.environment.reset(LAPTOP.config, split="eval", seed=0)
    with pytest.raises(SettingsError, match="player_0 made the move 'Play 2', which its policy"):
        advance(Tracker(LAPTOP, start), "Play 2", script_chances(LAPTOP, "hint-bot", 0))


def test_a_forfeit_ends_the_game_and_tells_nobody_anything() -> None:
    config = {"preset": "kuhn_poker", "bad_reply": "forfeit"}
    setup = registry.setup("kuhn_poker", config)
    tracker = Tracker(setup, setup.environment.reset(setup.config, split="eval", seed=0))
    assert advance(tracker, FORFEIT, script_chances(setup, "cfr-10", 0)) == {}
    assert tracker.mover() is None


@pytest.mark.parametrize(
    ("env", "config", "reason"),
    [
        ("hanabi", {"preset": "full"}, "it has .*e.* starts"),
        ("hanabi", {"preset": "laptop", "other_play": True}, "HANABI_OTHER_PLAY=1"),
        ("tic_tac_toe", {"preset": "tic_tac_toe"}, "its starts are not numbered"),
    ],
)
def test_games_whose_beliefs_cannot_be_computed_are_refused(
    env: str, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        check_setup(registry.setup(env, config))


def test_scripts_that_search_have_no_chances() -> None:
    with pytest.raises(SettingsError, match="with search: the probabilities of its moves are"):
        script_chances(LAPTOP, "search", 0)


def test_questions_have_no_word_that_a_tiny_model_does_not_know() -> None:
    for deductions in ("possible", "counted", "joined"):
        config = {"preset": "laptop", "deductions": deductions, **COMPACT}
        setup = registry.setup("hanabi", config)
        game = setup.environment.reset(setup.config, split="eval", seed=0)
        known = set(compact_vocabulary(setup.config.spec(), deductions))
        questions = game.questions(0)
        assert [question.name for question in questions] == ["slot0", "slot1", "slot2"]
        for question in questions:
            assert set(" ".join([question.text, *question.answers]).split()) <= known
        assert set(game.truths(0)) <= set(questions[0].answers)
    for env in ("kuhn_poker", "leduc_poker"):
        config = {"preset": env, "style": "compact"}
        setup = registry.setup(env, config)
        [question] = setup.environment.reset(setup.config, split="eval", seed=0).questions(0)
        assert set(" ".join([question.text, *question.answers]).split()) <= set(game_words(setup))


def test_every_deal_of_poker_is_numbered_once() -> None:
    for setup, num_starts, num_cards in ((KUHN, 6, 2), (LEDUC, 120, 3)):
        assert setup.environment.num_starts(setup.config) == num_starts
        dealt = set()
        for seed in range(num_starts):
            game = setup.environment.reset(setup.config, split=ALL_STARTS, seed=seed)
            while game.to_act():
                [player] = game.to_act()
                game.step({player: game.legal(player)[-1 if setup is KUHN else 1]})
            history = game.state.full_history()
            dealt.add(tuple(event.action for event in history if event.player < 0))
        assert len(dealt) == num_starts
        assert all(len(set(cards)) == num_cards for cards in dealt)
