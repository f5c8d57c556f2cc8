"""Critics: the advantages of their chains, what they learn, and that a resume changes nothing."""

import random
from dataclasses import replace

import pytest
import torch

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.objective import run_estimator
from hanabi_grpo.training.estimators import (
    EstimatorContext,
    LearnedValues,
    TurnValues,
    make_estimator,
)
from hanabi_grpo.training.estimators.arithmetic import lambda_advantages
from hanabi_grpo.training.learned.critic import (
    Critic,
    Critics,
    CriticValues,
    joint_features,
    lambda_targets,
)
from hanabi_grpo.training.learned.heads import PlayerTurns, TurnPlace
from hanabi_grpo.types import Episode, ToolCall
from made_games import made_episode, made_turn

NAMES = ("player_0", "player_1")
WIDTH = 8
"""Of a turn's features."""
TEAM = registry.setup("hanabi", {"preset": "laptop"}).spec
RIVALS = registry.setup("kuhn_poker", {"preset": "kuhn_poker"}).spec


def made_game(num_turns: int, seed: int) -> Episode:
    """Return a game in which the players take turns, with random rewards for each."""
    generator = random.Random(seed)
    turns = []
    for step in range(num_turns):
        turn = made_turn(step % 2, 5, 6, prompt_ids=(1, 2, 3))
        rewards = tuple({"score": generator.uniform(-1, 1)} for _ in range(2))
        turns.append(replace(turn, step=step, rewards=rewards))
    return made_episode(*turns, spec_hash=TEAM.hash)


def made_critics(
    advantage: str = "ippo", width: int = WIDTH, specs: tuple[EnvSpec, ...] = (TEAM, RIVALS)
) -> Critics:
    by_hash = {spec.hash: spec for spec in specs}
    return Critics(Settings(advantage=advantage), NAMES, by_hash, width)


def turns_to_come(games: list[Episode]) -> list[PlayerTurns]:
    """Return features that say how many turns are to come, at every turn of both players."""
    seen = []
    for player, name in enumerate(NAMES):
        places = []
        remaining = []
        for game, episode in enumerate(games):
            for number, turn in enumerate(episode.turns):
                if turn.player == player:
                    places.append(TurnPlace(game, number))
                    remaining.append(len(episode.turns) - number)
        features = torch.nn.functional.one_hot(torch.tensor(remaining), WIDTH).float()
        seen.append(PlayerTurns(player=name, places=places, features=features))
    return seen


def games_that_pay_each_turn(count: int) -> list[Episode]:
    """Return games in which a state is worth the number of turns to come."""
    games = []
    for seed in range(count):
        game = made_game(2 + seed % 5, seed)
        point = {"score": 1.0}
        turns = tuple(replace(turn, rewards=(point, point)) for turn in game.turns)
        games.append(replace(game, turns=turns))
    return games


def sum_of_sizes(values: TurnValues) -> float:
    return sum(abs(value) for game in values for value in game)


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_a_chain_weighs_what_comes_later_as_the_definition_does(decay: float) -> None:
    game = made_game(9, seed=1)
    # Nobody was asked in turn 2, as when a script sits there; the first player's critic alone knows
    # turn 6.
    chain = {number: float(number) ** 0.5 for number in (1, 3, 4, 6, 8)}
    advantages = lambda_advantages(game, 0, chain, decay)
    places = [*chain]
    deltas = []
    for place, following in zip(places, [*places[1:], None], strict=True):
        received = sum(turn.reward(0) for turn in game.turns[place:following])
        value_after = chain[following] if following else 0.0
        deltas.append(received + value_after - chain[place])
    for index, place in enumerate(places):
        expected = 0.0
        for ahead, delta in enumerate(deltas[index:]):
            expected += decay**ahead * delta
        assert advantages[place] == pytest.approx(expected)
    assert advantages.keys() == chain.keys()


def test_players_of_one_step_do_not_answer_each_other() -> None:
    both = [replace(turn, step=0) for turn in made_game(2, seed=2).turns]
    game = made_episode(*both, spec_hash=TEAM.hash)
    advantages = lambda_advantages(game, 1, {0: 5.0, 1: 2.0}, 0.9)
    above_own_value = pytest.approx(game.reward(1) - 2.0)
    assert advantages == {0: above_own_value, 1: above_own_value}


def test_what_a_call_of_a_tool_has_brought_is_not_taken_off_the_call() -> None:
    # One step: a call, then the action. A good call alone is paid, which its result shows.
    games = []
    for pay in (1.0, 0.0):
        call = replace(made_turn(0, 5), call=ToolCall(tool="search", argument="x"))
        action = replace(made_turn(0, 6, rewards={"score": pay}), follows_call=True)
        games.append(made_episode(call, action, spec_hash=TEAM.hash))
    good, bad = games
    # A critic that is right everywhere: half of the calls are good.
    assert lambda_advantages(good, 0, {0: 0.5, 1: 1.0}, 1.0) == {0: 0.5, 1: 0.5}
    assert lambda_advantages(bad, 0, {0: 0.5, 1: 0.0}, 1.0) == {0: -0.5, 1: -0.5}

    # It stays right: what both of its states are worth is what the game paid.
    chains = {id(good): {0: 0.5, 1: 1.0}, id(bad): {0: 0.5, 1: 0.0}}
    values = CriticValues(episodes=games, by_episode=chains, team_boards=frozenset())
    places = [TurnPlace(game, turn) for game in range(2) for turn in range(2)]
    targets = lambda_targets(games, places, values, [1.0, 1.0], decay=1.0, gamma=1.0)
    assert targets.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_penalty_of_one_player_of_a_team_reaches_no_advantage_of_another() -> None:
    # Both games pay the same; in the second, player 1's reply is penalized after player 0's.
    games = []
    for own_parts in ({}, {"illegal": -1.0, "kl": -0.5}):
        paid = {"score": 1.0}
        first = replace(made_turn(0, 5, rewards=paid), step=0, rewards=(paid, paid))
        second = replace(made_turn(1, 6), step=1, rewards=(paid, {**paid, **own_parts}))
        third = replace(made_turn(0, 7), step=2, rewards=(paid, paid))
        games.append(made_episode(first, second, third, spec_hash=TEAM.hash))
    values = CriticValues(
        episodes=games,
        # Exact critics of a player that expects its own penalties.
        by_episode={
            id(games[0]): {0: 3.0, 1: 2.0, 2: 1.0},
            id(games[1]): {0: 3.0, 1: 2.0, 2: 1.0},
        },
        team_boards=frozenset({TEAM.hash}),
    )
    estimator = run_estimator(Settings(advantage="ippo", gae_lambda=0.5, advantage_scale="none"))
    context = EstimatorContext(values=values)
    of_player_0 = estimator.credits(games, 0, context)
    assert of_player_0[0] == of_player_0[1]
    of_player_1 = estimator.credits(games, 1, context)
    assert of_player_1[1][0] == pytest.approx(of_player_1[0][0] - 1.5)
    # What the values learn does not contain it either.
    places = [TurnPlace(game, turn) for game in range(2) for turn in range(3)]
    targets = lambda_targets(games, places, values, [1.0, 1.0], decay=0.5, gamma=1.0)
    assert targets[:3].tolist() == targets[3:].tolist()


def test_with_swapped_seats_no_central_critic_learns_from_two_players() -> None:
    settings = Settings(advantage="mappo", swap_every=2)
    critics = Critics(settings, NAMES, {RIVALS.hash: RIVALS}, WIDTH)
    assert set(critics.by_name) == {
        "player_0/seat_0",
        "player_0/seat_1",
        "player_1/seat_0",
        "player_1/seat_1",
    }
    game = made_episode(made_turn(0, 5), made_turn(1, 6), spec_hash=RIVALS.hash)
    seats = ["player_1", "player_0"]
    assert [critics._critic_of(seats[turn], game, turn) for turn in range(2)] == [
        "player_1/seat_0",
        "player_0/seat_1",
    ]


def test_the_state_of_another_seat_is_what_it_was_before_its_calls() -> None:
    # Seat 1 calls a tool twice before it acts; then seat 0 is asked.
    turns = [replace(made_turn(1, 5, rewards={"score": 1.0}), step=0) for _ in range(3)]
    turns.append(replace(made_turn(0, 5, rewards={"score": 1.0}), step=1))
    game = made_episode(*turns, spec_hash=TEAM.hash)
    advantages = lambda_advantages(game, 0, {0: 4.0, 1: 50.0, 2: 60.0, 3: 2.0}, 0.0)
    received = sum(turn.reward(0) for turn in turns[:3])
    assert advantages[0] == pytest.approx(received + 2.0 - 4.0)


def test_without_a_critic_and_decay_it_is_what_comes_from_a_turn_on() -> None:
    games = [made_game(length, seed=length) for length in (3, 6)]
    for player in range(2):
        plain = make_estimator("return_to_go").advantages(games, player)
        assert make_estimator("ippo", scale="none").advantages(games, player) == [
            pytest.approx(game) for game in plain
        ]


def test_a_critic_learns_what_a_state_is_worth_and_takes_it_off() -> None:
    games = games_that_pay_each_turn(100)
    critics = made_critics()
    for _ in range(60):
        metrics = critics.observe([games], turns_to_come(games)).metrics
    assert all(explained > 0.95 for explained in metrics.values()), metrics

    values = critics.observe([games], turns_to_come(games)).values
    # In points, not in shares of the most that the board pays.
    errors = []
    for game in games:
        for number, value in values.chain(game, 0).items():
            errors.append(abs(value - (len(game.turns) - number)))
    assert sum(errors) / len(errors) < 0.4

    ippo = make_estimator("ippo", scale="none", gae_lambda=0.95)
    with_critic = ippo.advantages(games, 0, EstimatorContext(values=values))
    without = make_estimator("return_to_go").advantages(games, 0)
    assert sum_of_sizes(with_critic) < 0.3 * sum_of_sizes(without)


def test_a_team_shares_one_chain_and_rivals_have_one_each() -> None:
    team = made_game(4, seed=0)
    rivals = replace(team, spec_hash=RIVALS.hash)
    values = made_critics().observe([[team, rivals]], turns_to_come([team, rivals])).values
    assert [*values.chain(team, 0)] == [*values.chain(team, 1)] == [0, 2, 1, 3]
    assert [*values.chain(rivals, 0)] == [0, 2]
    assert [*values.chain(rivals, 1)] == [1, 3]


def test_where_nothing_was_learned_a_chain_is_0_at_the_players_own_turns() -> None:
    assert LearnedValues().chain(made_game(4, seed=0), 1) == {1: 0.0, 3: 0.0}


@pytest.mark.parametrize(("advantage", "name"), [("ippo", "player_0"), ("mappo", "team")])
def test_a_restored_critic_goes_on_bit_by_bit(advantage: str, name: str) -> None:
    games = games_that_pay_each_turn(30)
    critics = made_critics(advantage)
    resumed = made_critics(advantage)
    critics.observe([games], turns_to_come(games))
    saved = critics.state()
    for either in (critics, resumed):
        either.restore(saved)
        either.observe([games], turns_to_come(games))
    after = critics.state()
    assert all(torch.equal(after[key], value) for key, value in resumed.state().items())
    assert not torch.equal(saved[f"{name}|head.0.weight"], after[f"{name}|head.0.weight"])


def test_what_the_players_of_one_run_have_learned_stays_apart() -> None:
    games = games_that_pay_each_turn(30)
    alone = made_critics()
    [own_turns] = [turns for turns in turns_to_come(games) if turns.player == "player_0"]
    metrics = alone.observe([games], [own_turns]).metrics
    assert {*metrics} == {"player_0/value_explained"}
    untouched = made_critics().state()
    assert torch.equal(alone.state()["player_1|head.0.weight"], untouched["player_1|head.0.weight"])


def test_the_joint_state_is_every_seats_latest_prompt_with_the_one_who_is_asked_first() -> None:
    # Seat 1 moves first; then both at once; seat 0 again, where a script sits; and seat 1.
    seats_and_steps = [(1, 0), (0, 1), (1, 1), (0, 2), (1, 3)]
    turns = []
    for seat, step in seats_and_steps:
        turns.append(replace(made_turn(seat, 5, prompt_ids=(1,)), step=step))
    game = made_episode(*turns)
    places = [TurnPlace(3, 0), TurnPlace(3, 1), TurnPlace(3, 2), TurnPlace(3, 4)]
    features = torch.tensor([[1.0], [2.0], [3.0], [5.0]])
    joint = joint_features([game] * 4, places, features, num_seats=3)
    # Own prompt, the other's, room for a third seat, and who is asked.
    assert joint.tolist() == [
        [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [2.0, 3.0, 0.0, 1.0, 0.0, 0.0],
        [3.0, 2.0, 0.0, 0.0, 1.0, 0.0],
        [5.0, 2.0, 0.0, 0.0, 1.0, 0.0],
    ]


def test_no_result_of_a_call_is_in_the_joint_state_before_it() -> None:
    # Both are asked at once, and seat 0 calls a tool before it acts; then seat 1.
    seats_and_steps = [(0, 0), (0, 0), (1, 0), (1, 1)]
    turns = []
    for seat, step in seats_and_steps:
        turns.append(replace(made_turn(seat, 5, prompt_ids=(1,)), step=step))
    features = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    places = [TurnPlace(0, turn) for turn in range(4)]
    joint = joint_features([made_episode(*turns)], places, features, num_seats=2)
    assert joint.tolist() == [
        [1.0, 3.0, 1.0, 0.0],
        [2.0, 3.0, 1.0, 0.0],
        [3.0, 1.0, 0.0, 1.0],
        # Seat 0 has seen what its call has brought by now.
        [4.0, 2.0, 0.0, 1.0],
    ]


NUM_BIT_GAMES = 200


def games_of_two_bits() -> tuple[list[Episode], list[PlayerTurns]]:
    """Return games that pay for what only both players together know, a bit each."""
    generator = random.Random(0)
    bits = [(generator.randrange(2), generator.randrange(2)) for _ in range(NUM_BIT_GAMES)]
    games = []
    for own, other in bits:
        # Both are asked at once, and are paid alike.
        turns = [made_turn(seat, 5, rewards={"score": float(own != other)}) for seat in range(2)]
        games.append(made_episode(*turns, spec_hash=TEAM.hash))
    shown = torch.nn.functional.one_hot(torch.tensor(bits), 2).float()
    seen = []
    for seat, name in enumerate(NAMES):
        places = [TurnPlace(game, seat) for game in range(NUM_BIT_GAMES)]
        seen.append(PlayerTurns(player=name, places=places, features=shown[:, seat]))
    return games, seen


def metrics_after_60_steps(advantage: str) -> dict[str, float]:
    games, seen = games_of_two_bits()
    critics = made_critics(advantage, width=2)
    for _ in range(60):
        metrics = critics.observe([games], seen).metrics
    return dict(metrics)


def test_a_central_critic_knows_what_the_other_seat_sees() -> None:
    metrics = metrics_after_60_steps("mappo")
    assert metrics.keys() == {"team/value_explained"}
    assert all(explained > 0.95 for explained in metrics.values()), metrics


def test_a_critic_of_its_own_does_not_know_what_the_other_seat_sees() -> None:
    metrics = metrics_after_60_steps("ippo")
    assert metrics.keys() == {"player_0/value_explained", "player_1/value_explained"}
    assert all(explained < 0.1 for explained in metrics.values()), metrics


def critic_names(specs: tuple[EnvSpec, ...]) -> set[str]:
    """Return the names of MAPPO's critics, as their state has them."""
    return {key.partition("|")[0] for key in made_critics("mappo", specs=specs).state()}


def test_central_critics_are_one_for_a_team_and_one_for_each_seat_of_rivals() -> None:
    assert critic_names((TEAM,)) == {"team"}
    assert critic_names((RIVALS,)) == {"seat_0", "seat_1"}

    games = [replace(game, spec_hash=RIVALS.hash) for game in games_that_pay_each_turn(20)]
    critics = made_critics("mappo", specs=(RIVALS,))
    observation = critics.observe([games], turns_to_come(games))
    assert observation.metrics.keys() == {"seat_0/value_explained", "seat_1/value_explained"}
    assert [*observation.values.chain(games[3], 1)] == [1, 3]
    context = EstimatorContext(values=observation.values)
    assert len(make_estimator("mappo").advantages(games, 1, context)) == 20
    assert critics.observe([], []).metrics == {}


def test_a_critic_knows_nothing_at_first() -> None:
    assert Critic(3, 1e-3, "a").values(torch.ones(2, 3)).tolist() == [0.0, 0.0]
