"""All scripts together: legal on every board, blind to hidden cards, with the scores that tables print."""

import random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game, script, scripted_game
from hanabi_grpo.envs.base import Observation, Policy, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import POLICIES, REFERENCES, hint_bot
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS
from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, make_spec, parse_action
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import SettingsError
from hidden_cards import swap_own_cards

BOTS = tuple(POLICIES)[len(REFERENCES) :]
LAPTOP = EnvConfig(preset="laptop", observation="compact")
R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)


def answer(policy: Policy, game: Game, number: int = 0) -> str:
    config = EnvConfig(preset=game.spec.preset, players=game.spec.num_players, observation="compact")
    player = game.current_player
    seat = policy.seat(player, task=Setup(HANABI, config).task("test", 3), game=number)
    return seat.act(Observation(HanabiGame(config, game), player))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_no_move_depends_on_the_movers_own_hidden_cards(preset: str, num_players: int, name: str, rng) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    other = None if game.is_over else swap_own_cards(game, game.current_player, rng)
    if other is not None:
        assert other.hands[game.current_player] != game.hands[game.current_player]
        assert answer(script(name), other) == answer(script(name), game)


@pytest.mark.parametrize("name", BOTS)
def test_the_property_above_meets_positions_in_every_phase_of_the_game(name: str) -> None:
    spec, rng = make_spec("full"), random.Random(5)
    kinds = set()
    for _ in range(60):
        game = random_game(spec, rng)
        if not game.is_over and swap_own_cards(game, game.current_player, rng) is not None:
            kinds.add((answer(script(name), game).split()[0], game.view(0).deck_size < 10))
    assert len({kind for kind, _ in kinds}) >= 2
    assert {is_late for _, is_late in kinds} == {False, True}


@pytest.mark.parametrize("name", BOTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_bots_make_only_legal_moves_on_every_board_with_any_partner(preset: str, num_players: int, name: str) -> None:
    config = EnvConfig(preset=preset, players=num_players)
    for seed in range(6):
        scripted_game(config, [name] * num_players, seed=seed)
        strangers = ["random" if seat % 2 == seed % 2 else name for seat in range(num_players)]
        scripted_game(config, strangers, seed=seed)


@pytest.mark.parametrize("name", POLICIES)
def test_a_script_makes_the_same_moves_in_the_words_of_either_style(name: str) -> None:
    moves = []
    for style in ("full", "compact"):
        setup = Setup(HANABI, EnvConfig.parse({"preset": "small", "players": 2, "observation": style}))
        turns = play_scripts(setup.task("test", 5), dict.fromkeys(range(2), script(name))).turns
        assert all(turn.reply == turn.action for turn in turns)
        assert all(turn.action.count("player") == (style == "full") for turn in turns if turn.action[0] == "H")
        moves.append([parse_action(turn.action, num_players=2, player=turn.player) for turn in turns])
    assert moves[0] == moves[1]


@pytest.mark.parametrize("name", ["random", "iggi", "piers", "outer"])
def test_scripts_draw_anew_in_every_game_of_a_deal_and_repeat_each(name: str) -> None:
    def moves(number: int) -> tuple[Action, ...]:
        game = scripted_game(EnvConfig(preset="full"), [name] * 2, suite="test", seed=1, number=number)
        return tuple(event.action for event in game.events)

    assert moves(0) == moves(0)
    assert len({moves(number) for number in range(20)}) > 1


@pytest.mark.parametrize(
    ("preset", "name", "mean"),
    [
        ("laptop", "random", 0.64),
        ("laptop", "blind", 0.133),
        ("laptop", "hint-bot", 2.65),
        ("marshal-mini", "blind", 2.300),
    ],
)
def test_reference_scores_are_within_five_standard_errors(preset: str, name: str, mean: float) -> None:
    config = EnvConfig(preset=preset)
    scores = [scripted_game(config, [name] * 2, suite="train-reference", seed=seed).score for seed in range(2000)]
    assert abs(fmean(scores) - mean) < 5 * stdev(scores) / len(scores) ** 0.5


def test_the_hint_bot_plays_what_is_certain_else_hints_else_discards() -> None:
    game = Game(LAPTOP.spec(), (R1, R2, Y2, Y1, R1, R1, Y1, Y1))
    assert answer(hint_bot(), game) == "Hint 1"
    game.apply(Action("hint_rank", target=1, value=0))
    assert answer(hint_bot(), game) == "Play 0"

    game = Game(LAPTOP.spec(), (R2, Y2, R1, Y1, R1, Y1, R1, Y1))
    game.apply(Action("hint_rank", target=1, value=0))
    game.apply(Action("play", slot=0))
    assert answer(hint_bot(), game) == "Hint R", "the rank is known"
    game.apply(Action("discard", slot=0))
    # Its slot 0 is a 1 of either colour, and yellow 1 lies on the table: it helps the partner instead.
    assert answer(hint_bot(), game) == "Hint 2"

    game = Game(LAPTOP.spec(), (R2, Y2, Y1, R1, R1, Y1, R1, Y1))
    game.apply(Action("play", slot=2))
    for target, rank in ((0, 1), (1, 0), (0, 0)):
        game.apply(Action("hint_rank", target=target, value=rank))
    assert answer(hint_bot(), game) == "Discard 0", "no hint is left"


def test_noise_one_is_random_play_and_a_share_is_checked() -> None:
    scores = [scripted_game(LAPTOP, [hint_bot(1.0)] * 2, suite="train", seed=seed).score for seed in range(2000)]
    assert abs(fmean(scores) - 0.64) < 0.12
    with pytest.raises(SettingsError, match=r"noise=1\.5: it is a share"):
        hint_bot(1.5)


def test_the_rules_of_each_bot_are_those_of_the_paper_in_order() -> None:
    assert {name: [rule.__name__ for rule in rules] for name, rules in RULE_BOTS.items()} == {
        "iggi": [
            "play_if_certain",
            "play_safe_card",
            "tell_anyone_about_useful_card",
            "osawa_discard",
            "discard_oldest_first",
            "tell_randomly",
        ],
        "piers": [
            "play_safe_card",
            "play_probably_safe(0.6) if has_lives_to_spare",
            "tell_anyone_about_useful_card",
            "tell_dispensable if hints_run_low",
            "osawa_discard",
            "discard_oldest_first",
            "tell_randomly",
            "discard_randomly",
        ],
        "outer": [
            "play_safe_card",
            "osawa_discard",
            "tell_playable_card_outer",
            "tell_unknown",
            "discard_randomly",
        ],
        "flawed": [
            "play_safe_card",
            "play_probably_safe(0.25)",
            "tell_randomly",
            "osawa_discard",
            "discard_oldest_first",
            "discard_randomly",
        ],
    }
