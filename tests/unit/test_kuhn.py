"""Kuhn poker: OpenSpiel's game move by move, known values, and what its players read."""

import itertools

import pyspiel
import pytest
from open_spiel.python import policy as openspiel_policy
from open_spiel.python.algorithms import expected_game_score, exploitability

from hanabi_grpo.envs.base import Observation
from hanabi_grpo.envs.kuhn import CARDS, DEALS, FACING_BET, KUHN, OPEN, KuhnConfig, KuhnGame, equilibrium

CONFIG = KuhnConfig()
OPENSPIEL = pyspiel.load_game("kuhn_poker")


class Fixed:
    """A generator whose next draw is given."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize("cards", DEALS, ids="".join)
def test_every_game_is_openspiels_move_by_move(cards: tuple[str, str]) -> None:
    num_games = 0
    for numbers in itertools.product((0, 1), repeat=3):
        state, game = OPENSPIEL.new_initial_state(), KuhnGame(cards)
        for card in cards:
            state.apply_action(CARDS.index(card))
        rewards = [0.0, 0.0]
        for number in numbers:
            if state.is_terminal():
                break
            assert game.to_act() == (state.current_player(),)
            legal = game.legal(state.current_player())
            assert legal in (OPEN, FACING_BET)
            assert len(legal) == len(state.legal_actions())
            assert game.view(0).card + game.view(1).card == "".join(cards)
            parts = game.step({state.current_player(): legal[number]})
            rewards = [total + part.get("chips", 0.0) for total, part in zip(rewards, parts, strict=True)]
            state.apply_action(number)
        assert (game.to_act() == ()) is state.is_terminal()
        assert state.is_terminal()
        assert rewards == state.returns()
        assert game.result()["first_chips"] == state.returns()[0]
        num_games += 1
    assert num_games == 8


def tabular(alpha: float) -> openspiel_policy.TabularPolicy:
    """Return OpenSpiel's table of a script's chances: how often it acts as its draw goes from 0 to 1."""
    table = openspiel_policy.TabularPolicy(OPENSPIEL)
    script = equilibrium(alpha)
    for text, row in table.state_lookup.items():
        card, history = CARDS[int(text[0])], text[1:]
        game = KuhnGame((card, "J") if len(history) % 2 == 0 else ("J", card))
        for letter in history:
            [player] = game.to_act()
            game.step({player: game.legal(player)["pb".index(letter)]})
        [player] = game.to_act()
        draws = [(step + 0.5) / 600 for step in range(600)]
        seen = Observation(game, player)
        bets = sum(script.choose(seen, Fixed(draw)) in ("bet", "call") for draw in draws) / len(draws)  # type: ignore[arg-type]
        table.action_probability_array[row] = (1 - bets, bets)
    return table


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2, 0.3, 1 / 3])
def test_the_equilibria_cannot_be_exploited_and_cost_the_first_player_an_eighteenth(alpha: float) -> None:
    table = tabular(alpha)
    assert exploitability.nash_conv(OPENSPIEL, table) == pytest.approx(0.0, abs=1e-9)
    value = expected_game_score.policy_value(OPENSPIEL.new_initial_state(), [table, table])
    assert value == pytest.approx([-1 / 18, 1 / 18])


def test_a_player_reads_its_card_once_and_then_what_is_new() -> None:
    game = KuhnGame("QK")
    assert game.message(0) == "Your card is Q. Your action: check or bet?"
    game.step({0: "check"})
    assert game.message(1) == "Your card is K. The first player: check. Your action: check or bet?"
    game.step({1: "bet"})
    assert game.message(0) == "The second player: bet. Your action: fold or call?"
    assert game.state_message(0) == (
        "Your card is Q. The first player: check. The second player: bet. Your action: fold or call?"
    )
    assert "You are the second player" in KUHN.system(CONFIG, 1)
    assert [game.parse(0, reply) for reply in ("Call", "I fold.", "**fold**", "raise")] == ["call", None, "fold", None]
