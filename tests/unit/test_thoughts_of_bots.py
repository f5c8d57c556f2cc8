"""Bots that think aloud play as before, and no thought holds what its player cannot know."""

import random
from typing import Any

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HanabiGame
from hanabi_grpo.envs.hanabi.policies.hat import Convention, decide
from hanabi_grpo.envs.hanabi.policies.hat_aloud import thought_sentences, thought_words
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary, view_with
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.prompts.full import full_thought
from hanabi_grpo.envs.hanabi.rules.game import Game, with_other_cards
from hanabi_grpo.envs.hanabi.rules.presets import make_spec
from hanabi_grpo.envs.hanabi.rules.view import Card
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.envs.texts import split_reply

BOTS = ("hint-bot", "iggi", "focus-bot")
HAT_BOT = "hat-bot"
SAVE_BOT = "save-bot"


def board(preset: str = "laptop", players: int = 2, **config: Any) -> Setup[Any]:
    return registry.setup(
        "hanabi",
        {"preset": preset, "players": players, "observation": "full", "memory": "turn", **config},
    )


def thoughts_of_same_game(setup: Setup[Any], bot: str, number: int) -> list[str]:
    """Return the thoughts of a bot in a game, which has to be the one that it plays silently."""
    games = []
    for name in (bot, f"{bot}-aloud"):
        policy = setup.environment.policies[name]()
        policies = dict.fromkeys(range(setup.spec.num_players), policy)
        games.append(play_scripts(setup.task("eval", number), policies))
    silent, aloud = games
    assert aloud.result == silent.result
    moves = [split_reply(turn.reply)[1].strip() for turn in aloud.turns]
    assert moves == [turn.reply for turn in silent.turns]
    thoughts = [split_reply(turn.reply)[0] for turn in aloud.turns]
    assert len(set(thoughts)) > len(thoughts) / 2
    return thoughts


@pytest.mark.parametrize("bot", BOTS)
@pytest.mark.parametrize("players", [2, 5])
def test_a_bot_that_thinks_aloud_plays_the_same_game(bot: str, players: int) -> None:
    setup = board("full", players)
    for number in range(3):
        thoughts = thoughts_of_same_game(setup, bot, number)
        hand_size = setup.config.spec().hand_size
        assert thoughts[0].count("My slot") == hand_size


def test_a_thought_says_what_follows_from_the_message() -> None:
    setup = board(deductions="none")
    policy = setup.environment.policies["hint-bot-aloud"]()
    referee = Referee(setup.task("eval", 1))
    seat = policy.seat(0, task=setup.task("eval", 1), game=0)
    seen = referee.see(0)
    assert seat.act(seen) == (
        "<think>\n"
        "My slot 0 can be played now with a chance of 60%.\n"
        "My slot 1 can be played now with a chance of 60%.\n"
        "My slot 2 can be played now with a chance of 60%.\n"
        "player_1 slot 0, red 1, can be played now.\n"
        "player_1 slot 1, yellow 1, can be played now.\n"
        "player_1 slot 2, yellow 1, can be played now.\n"
        "</think>\n"
        "Hint player_1 1"
    )


@pytest.mark.parametrize("deductions", ["none", "possible", "counted"])
@pytest.mark.parametrize("players", [2, 4])
def test_a_thought_does_not_depend_on_the_cards_that_its_player_cannot_see(
    deductions: Deductions, players: int
) -> None:
    setup = board("marshal-full" if players == 2 else "full", players, deductions=deductions)
    policy = setup.environment.policies["iggi"]()
    num_changed = 0
    for number in range(4):
        task = setup.task("eval", number)
        seats = [policy.seat(player, task=task, game=0) for player in range(players)]
        referee = Referee(task)
        while referee.to_act():
            [player] = referee.to_act()
            game = referee.game
            assert isinstance(game, HanabiGame)
            view = game.view(player)
            for seed in range(3):
                other = with_other_cards(game.table, player, random.Random(seed))
                num_changed += other.hands[player] != game.table.hands[player]
                changed = other.view(player)
                assert full_thought(view_with(changed, deductions)) == full_thought(
                    view_with(view, deductions)
                )
            referee.step({player: seats[player].act(referee.see(player))})
    assert num_changed > 20


@pytest.mark.parametrize("style", ["compact", "full"])
@pytest.mark.parametrize("players", [3, 4, 5])
def test_the_hat_bot_that_thinks_aloud_plays_the_same_game(players: int, style: str) -> None:
    setup = board("full", players, observation=style, deductions="joined")
    words = set(compact_vocabulary(setup.config.spec(), "joined"))
    for number in range(3):
        thoughts = thoughts_of_same_game(setup, HAT_BOT, number)
        if style == "compact":
            assert set(" ".join(thoughts).split()) <= words


@pytest.mark.parametrize("style", ["compact", "full"])
@pytest.mark.parametrize("deductions", ["none", "possible", "counted", "joined", "recalled"])
@pytest.mark.parametrize("players", [2, 5])
def test_the_save_bot_that_thinks_aloud_plays_the_same_game(
    players: int, deductions: Deductions, style: str
) -> None:
    setup = board("full", players, observation=style, deductions=deductions)
    words = set(compact_vocabulary(setup.config.spec(), deductions))
    for number in range(3):
        thoughts = thoughts_of_same_game(setup, SAVE_BOT, number)
        if style == "compact":
            assert set(" ".join(thoughts).split()) <= words


ONE_COLOR_PRESET = "1x5-hand2-info3-life3"
"""A board on which the hats can be worked out by hand: modulus 4, play 0, 1, discard 0, 1."""


def test_a_thought_of_the_hat_bot_holds_the_sums_behind_a_hint() -> None:
    ranks = (3, 4, 1, 3, 4, 1, 5, 2, 2, 1)
    spec = make_spec(ONE_COLOR_PRESET, 3)
    convention = Convention(spec)
    table = Game(spec, tuple(Card(0, rank - 1) for rank in ranks))
    # The hands are 3 4, 1 3 and 4 1: the 1s are to be played, slot 0 and slot 1.
    view = table.view(0)
    decision = decide(convention, view, random.Random(0))
    words = thought_words(decision, view, "counted")
    assert words == "say mate1 play0 mate2 play1 play1 mate1 R 3"
    table.apply(decision.move)
    # 1 of 4, of which player_2's hand takes 1, leaves 0; the move needs no more.
    view = table.view(1)
    decision = decide(convention, view, random.Random(0))
    words = thought_words(decision, view, "counted")
    assert words == "player_0 play1 player_2 play1 play0"
    table.apply(decision.move)
    # Its 1 has become useless. Now the hands of the others are 3 4 and 3 5: 3 + 2 = 1 of 4.
    view = table.view(2)
    decision = decide(convention, view, random.Random(0))
    heard = "player_0 play1 player_1 play0 play1"
    told = "say mate1 discard1 mate2 discard0 play1"
    scored = "slot1fit2 cR r12345 Play 0 R1 good maybe"
    assert thought_words(decision, view, "counted") == f"{heard} {scored} {told}"
    scored = "slot1 fit2.cR.r12345 Play.0.R1.good maybe"
    assert thought_words(decision, view, "joined") == f"{heard} {scored} {told}"
    assert thought_sentences(decision, view) == (
        "The last hint, by player_0, stands for play slot 1.\n"
        "Then player_1 had to play slot 0. That leaves play slot 1.\n"
        "My slot 1: colour red, rank any.\n"
        "Then red 1 was played. My card may be the same.\n"
        "player_0 should discard slot 1.\n"
        "player_1 should discard slot 0. Together play slot 1."
    )
