"""All scripts together: legal on every board, blind to hidden cards, the same in every loop over a game."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import REFERENCES, SCRIPTED, make_policy, play_scripted
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle, parse_reply
from hanabi_grpo.envs.hanabi.rules import Action, Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.rollout.loop import play_episodes_sync
from hidden_cards import swap_own_cards

BOTS = SCRIPTED[len(REFERENCES) :]


def answer(name: str, game: Game, player: int) -> Action:
    seat = make_policy(name).seat(player, spec=game.spec, suite="test", seed=3, game=1)
    return seat.move(game.view(player))


@pytest.mark.parametrize("name", SCRIPTED)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_no_move_depends_on_the_movers_own_hidden_cards(preset: str, num_players: int, name: str, rng) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    player = game.current_player
    other = None if game.is_over else swap_own_cards(game, player, rng)
    if other is not None:
        assert other.hands[player] != game.hands[player]
        assert answer(name, other, player) == answer(name, game, player)


@pytest.mark.parametrize("name", BOTS)
def test_the_property_above_meets_positions_in_every_phase_of_the_game(name: str) -> None:
    spec, rng = make_spec("full"), random.Random(5)
    kinds = set()
    for _ in range(60):
        game = random_game(spec, rng)
        if not game.is_over and swap_own_cards(game, game.current_player, rng) is not None:
            kinds.add((answer(name, game, game.current_player).kind, game.view(0).deck_size < 10))
    assert len({kind for kind, _ in kinds}) >= 2
    assert {is_late for _, is_late in kinds} == {False, True}


@pytest.mark.parametrize("name", BOTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_bots_make_only_legal_moves_on_every_board_with_any_partner(preset: str, num_players: int, name: str) -> None:
    spec = make_spec(preset, num_players)
    for seed in range(6):
        play_scripted(spec, [make_policy(name)] * num_players, suite="test", seed=seed)
        strangers = [make_policy("random" if seat % 2 == seed % 2 else name) for seat in range(num_players)]
        play_scripted(spec, strangers, suite="test", seed=seed)


@pytest.mark.parametrize("name", SCRIPTED)
def test_games_without_text_are_move_for_move_those_with_text(name: str) -> None:
    config = EnvConfig(preset="small", players=3)
    policies = [make_policy(name)] * 3
    (episode,) = play_episodes_sync(config, policies, "test", [5])
    game = play_scripted(config.spec(), policies, suite="test", seed=5)
    moves = [format_action(event.action, style=config.observation, num_players=3) for event in game.events]
    assert [turn.action for turn in episode.turns] == moves
    assert (episode.score, episode.score_kept) == (game.score, game.score_kept)


@pytest.mark.parametrize("name", BOTS)
@pytest.mark.parametrize("style", ObservationStyle)
def test_the_text_of_a_reply_is_the_move(name: str, style: ObservationStyle) -> None:
    spec = make_spec("full", 4)
    game = Game(spec, shuffled_deck(spec, "test", 2))
    first, second = (make_policy(name, style=style).seat(0, spec=spec, suite="test", seed=2, game=0) for _ in range(2))
    text = asyncio.run(first.reply(game.view(0), lambda: "")).text
    assert parse_reply(text, num_players=4, player=0) == second.move(game.view(0))


@pytest.mark.parametrize("name", ["iggi", "piers", "outer"])
def test_rule_bots_draw_anew_in_every_game_of_a_deal_and_repeat_each(name: str) -> None:
    spec = make_spec("full")
    policies = [make_policy(name)] * 2

    def moves(game: int) -> tuple[Action, ...]:
        return tuple(e.action for e in play_scripted(spec, policies, suite="test", seed=1, game=game).events)

    assert moves(0) == moves(0)
    assert len({moves(game) for game in range(20)}) > 1


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
