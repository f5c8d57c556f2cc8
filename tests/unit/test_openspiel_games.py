"""The games of OpenSpiel: their constants, who beats whom, and what a best responder wins."""

import itertools
from math import sqrt

import pytest

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.conformance import check, check_games, check_starts
from hanabi_grpo.envs.openspiel.exploitability import (
    InformationSet,
    exploitability,
    information_sets,
    uniform,
)
from hanabi_grpo.envs.openspiel.game import can_resample
from hanabi_grpo.envs.openspiel.policies import equilibrium, minimax
from hanabi_grpo.envs.openspiel.rules import check_name, load, playable_names
from hanabi_grpo.envs.referee import Referee, play_scripts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.outcomes import outcome_sheets, wilson


def make(env: str, preset: str = "", **fields: object):  # type: ignore[no-untyped-def]
    config = registry.get(env).presets[preset or env]
    return registry.setup(env, {**config.model_dump(), **fields})


def equilibrium_profile(
    sets: tuple[InformationSet, ...], env: str, iterations: int
) -> dict[str, list[float]]:
    """Return the chances of CFR+ after so many iterations, per information state."""
    solved = equilibrium(env, iterations)
    profile = {}
    for known in sets:
        chances = dict(solved[known.information])
        profile[known.information] = [chances[action] for action in known.actions]
    return profile


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("tic_tac_toe", ""),
        ("connect_four", "connect_four-4x5"),
        ("kuhn_poker", ""),
        ("leduc_poker", ""),
    ],
)
def test_a_game_of_openspiel_does_what_the_interface_says(
    env: str, preset: str, style: str
) -> None:
    setup = make(env, preset, style=style)
    report = check(setup.environment, setup.config, num_episodes=5)
    assert bool(report.secrets) is env.endswith("poker")


@pytest.mark.parametrize(
    ("env", "num_sets", "nash_conv", "value", "best", "after"),
    [
        (
            "kuhn_poker",
            12,
            0.916667,
            -1 / 18,
            (0.5, 0.416667),
            {10: 0.0327, 100: 0.00119, 300: 0.00043},
        ),
        ("leduc_poker", 936, 4.747222, -0.085606, (2.0875, 2.659722), {10: 0.610, 100: 0.0134}),
    ],
)
def test_poker_has_the_published_values(
    env: str,
    num_sets: int,
    nash_conv: float,
    value: float,
    best: tuple[float, float],
    after: dict[int, float],
) -> None:
    setup = make(env)
    sets = information_sets(setup)
    assert len(sets) == num_sets
    even = exploitability(setup, uniform(setup))
    assert even.nash_conv == pytest.approx(nash_conv, abs=1e-5)
    assert even.best_responses == pytest.approx(best, abs=1e-5)
    for iterations, expected in after.items():
        solved = exploitability(setup, equilibrium_profile(sets, env, iterations))
        assert solved.exploitability == pytest.approx(expected, rel=0.01)
    first_value, second_value = solved.values
    assert first_value == pytest.approx(value, abs=0.01)
    assert second_value == -first_value


@pytest.mark.parametrize(
    ("env", "preset", "first", "second", "games", "expected"),
    [
        ("tic_tac_toe", "", "random", "random", 1000, (0.586, 0.132, 0.282)),
        ("tic_tac_toe", "", "minimax", "random", 500, (0.965, 0.035, 0.0)),
        ("tic_tac_toe", "", "random", "minimax", 500, (0.0, 0.22, 0.78)),
        ("tic_tac_toe", "", "minimax", "mcts-100", 150, (0.39, 0.61, 0.0)),
        ("tic_tac_toe", "", "minimax", "mcts-1000", 20, (0.0, 1.0, 0.0)),
        ("connect_four", "", "random", "random", 500, (0.571, 0.004, 0.425)),
        ("connect_four", "", "random", "mcts-10", 100, (0.035, 0.0, 0.965)),
        ("connect_four", "", "random", "mcts-100", 30, (0.0, 0.0, 1.0)),
        ("connect_four", "", "mcts-1000", "mcts-100", 10, (0.80, 0.0, 0.20)),
        ("connect_four", "connect_four-4x5", "minimax", "random", 50, (1.0, 0.0, 0.0)),
    ],
)
def test_scripts_win_draw_and_lose_as_often_as_measured_elsewhere(
    env: str, preset: str, first: str, second: str, games: int, expected: tuple[float, float, float]
) -> None:
    setup = make(env, preset)
    lineup = parse_lineup(f"{first},{second}", 2, env=env)
    result = evaluate_lineup(lineup, setup, games, rotate=False)
    for name, share in zip(("win", "draw", "loss"), expected, strict=True):
        error = sqrt(max(share * (1 - share), 0.003) / games)
        assert abs(result.figures[f"{name} as first"] - share) < 4 * error + 0.001


def test_pure_strategies_of_kuhn_look_good_against_an_equilibrium_and_are_exploited() -> None:
    """18 of the first player's 64 reach the game's value, and no greedy profile is safe."""
    setup = make("kuhn_poker")
    sets = information_sets(setup)
    fair = equilibrium_profile(sets, "kuhn_poker", 1000)
    assert exploitability(setup, uniform(setup)).values == pytest.approx((0.125, -0.125))
    assert exploitability(setup, fair).exploitability < 0.0002
    game_values = (-1 / 18, 1 / 18)
    # Per player what a best responder wins above the game's value from each pure strategy.
    lost: tuple[list[float], list[float]] = ([], [])
    lost_by_good_looking = []
    for player in (0, 1):
        own_sets = [known.information for known in sets if known.player == player]
        for choices in itertools.product(([1.0, 0.0], [0.0, 1.0]), repeat=len(own_sets)):
            pure = dict(zip(own_sets, choices, strict=True))
            figures = exploitability(setup, {**fair, **pure})
            opponent = 1 - player
            loss = figures.best_responses[opponent] - game_values[opponent]
            lost[player].append(loss)
            if player == 0 and figures.values[0] > game_values[0] - 0.001:
                lost_by_good_looking.append(loss)
    assert len(lost_by_good_looking) == 18
    assert min(lost_by_good_looking) > 0.11 - 0.002
    assert max(lost_by_good_looking) < 0.45
    assert (min(lost[0]) + min(lost[1])) / 2 == pytest.approx(1 / 6, abs=1e-6)


def test_tic_tac_toe_has_5478_positions() -> None:
    positions = set()
    stack = [load("tic_tac_toe").new_initial_state()]
    while stack:
        state = stack.pop()
        if str(state) in positions:
            continue
        positions.add(str(state))
        if not state.is_terminal():
            stack += [state.child(action) for action in state.legal_actions()]
    assert len(positions) == 5478


def test_the_matrix_game_pays_a_team_of_two_ten() -> None:
    matrix = registry.setup("openspiel:tiny_hanabi", {"preset": "tiny_hanabi"}).spec
    assert matrix.payoff == "team"
    assert matrix.num_players == 2
    assert matrix.return_range[1] == 10.0


def test_outcomes_are_those_of_the_first_word_in_each_seat_with_intervals() -> None:
    lineup = parse_lineup("random,minimax", 2, env="tic_tac_toe")
    result = evaluate_lineup(lineup, make("tic_tac_toe"), 60)
    [sheet] = outcome_sheets([result])
    first, second, both = sheet.groups[0]
    assert [row[1] for row in sheet.groups[0]] == ["first", "second", "both"]
    assert first[2] == "0.000 (0.00 to 0.06)"
    assert second[2] == "0.000 (0.00 to 0.06)"
    assert float(second[4][:5]) > 0.85
    assert both[-1] == f"{50 * (1 + result.mean):.1f}"
    assert float(first[-1]) > float(second[-1])


def test_wilsons_interval_has_its_published_value() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_a_team_has_no_outcomes() -> None:
    hanabi = registry.setup("hanabi", {"preset": "laptop"})
    result = evaluate_lineup(parse_lineup("iggi", 2), hanabi, 2)
    assert outcome_sheets([result]) == []


def test_leduc_deals_every_card_once() -> None:
    """With all rank triples equally likely the game would have another value (-.1193)."""
    setup = make("leduc_poker")
    num_games = 3000
    num_three_ranks = 0
    for seed in range(num_games):
        game = setup.environment.reset(setup.config, split="train", seed=seed)
        for action in ("call", "call"):
            [player] = game.to_act()
            game.step({player: action})
        cards = [event.action for event in game.state.full_history() if event.player < 0]
        assert len(set(cards)) == 3
        ranks = {card // 2 for card in cards}
        num_three_ranks += len(ranks) == 3
    standard_error = sqrt(0.4 * 0.6 / num_games)
    assert abs(num_three_ranks / num_games - 0.4) < 4 * standard_error


@pytest.mark.parametrize(
    ("env", "turns", "returns"),
    [
        # Three others share what the fourth loses.
        ("tiny_bridge_4p", 0, [-160.0, 160 / 3, 160 / 3, 160 / 3]),
        ("tiny_bridge_4p", 1, [160 / 3, -160.0, 160 / 3, 160 / 3]),
        # A team loses together.
        ("tiny_bridge_2p", 0, [-40.0, -40.0]),
        # What was paid on the way counts: three moves have cost 3 of the 199 that can be lost.
        ("cliff_walking", 3, [-199.0]),
    ],
)
def test_a_forfeited_game_has_the_least_return_whatever_was_paid_before(
    env: str, turns: int, returns: list[float]
) -> None:
    name = f"openspiel:{env}"
    setup = registry.setup(name, {"preset": env, "bad_reply": "forfeit"})
    referee = Referee(setup.task("train", 0))
    for number in range(turns + 1):
        [player] = referee.to_act()
        legal = referee.game.legal(player) or ()
        referee.step({player: "I give up" if number == turns else legal[1]})
    episode = referee.episode()
    paid = [episode.reward(seat, "return", "forfeit") for seat in range(len(returns))]
    assert paid == pytest.approx(returns)
    assert episode.result == pytest.approx({"first": returns[0], "forfeit": 1.0})


def test_a_draw_may_pay_and_a_bad_reply_may_forfeit() -> None:
    setup = make("tic_tac_toe", reward_draw=0.1, bad_reply="forfeit")
    assert setup.spec.payoff == "general"
    game = setup.environment.reset(setup.config, split="train", seed=0)
    for cell in "15237468":
        game.step({game.to_act()[0]: cell})
    assert game.step({0: "9"}) == [{"draw": 0.1}, {"draw": 0.1}]
    game = setup.environment.reset(setup.config, split="train", seed=0)
    assert game.step({0: "<forfeit>"}) == [{"forfeit": -1.0}, {"forfeit": 1.0}]
    assert game.to_act() == ()
    assert game.result() == {"first": -1.0, "forfeit": 1}


def test_games_that_cannot_be_played_are_refused_with_those_that_can() -> None:
    assert {"tic_tac_toe", "hex", "liars_dice"} <= set(playable_names())
    with pytest.raises(SettingsError, match=r"no such game; did you mean 'tic_tac_toe'"):
        check_name("tictactoe")
    with pytest.raises(SettingsError, match="its players do not take turns"):
        check_name("matrix_rps")
    with pytest.raises(SettingsError, match=r"no such game; did you mean 'breakthrough'"):
        registry.get("openspiel:breaktrough")


@pytest.mark.parametrize(
    ("field", "value"), [("rows", 1), ("columns", 11), ("in_a_row", 2), ("in_a_row", 8)]
)
def test_boards_of_impossible_sizes_are_refused(field: str, value: int) -> None:
    with pytest.raises(SettingsError, match=f"{field}=.*(must be from|Input should be)"):
        make("connect_four", **{field: value})


def test_games_that_are_too_large_for_a_script_or_for_exploitability_are_refused() -> None:
    with pytest.raises(SettingsError, match="more than the 20 that can be searched"):
        play_scripts(make("connect_four").task("eval", 0), dict.fromkeys((0, 1), minimax()))
    with pytest.raises(SettingsError, match="two-player zero-sum games of OpenSpiel"):
        information_sets(registry.setup("kuhn", {"preset": "kuhn"}))
    with pytest.raises(
        SettingsError, match=r"more than 100000 information sets.* the maximum is 5000"
    ):
        information_sets(make("connect_four"))
    with pytest.raises(SettingsError, match="it has 24576 information sets"):
        information_sets(registry.setup("openspiel:liars_dice", {"preset": "liars_dice"}))


@pytest.mark.parametrize("game", ["tiny_hanabi", "breakthrough", "liars_dice", "pig", "kuhn_poker"])
def test_any_other_game_is_played_in_the_words_of_openspiel(game: str) -> None:
    setup = registry.setup(f"openspiel:{game}", {"preset": game})
    check_games(setup.environment, setup.config, num_episodes=3)
    check_starts(setup.environment, setup.config)
    first = Referee(setup.task("train", 0))
    seen = first.see(first.to_act()[0])
    legal = seen.legal() or ()
    assert len(legal) > 1
    assert seen.message().endswith(f"Your actions: {', '.join(legal)}.")


def test_openspiel_deals_hidden_cards_again_where_no_random_deal_would_fit() -> None:
    setup = registry.setup("openspiel:hearts", {"preset": "hearts"})
    report = check_games(setup.environment, setup.config, num_episodes=1)
    # Each of four players holds 13 of 52 cards, in at least 52 positions.
    assert report.secrets["what others know"] > 150


@pytest.mark.parametrize(
    ("game", "is_drawn_by_openspiel"),
    [("kuhn_poker", True), ("leduc_poker", True), ("liars_dice", False)],
)
def test_openspiel_says_for_which_games_it_deals_hidden_cards_again(
    game: str, is_drawn_by_openspiel: bool
) -> None:
    assert can_resample(game) is is_drawn_by_openspiel
