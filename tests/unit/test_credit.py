"""Learned credit: the mixers, and what each player's part in a return is."""

import itertools

import pytest
import torch

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import check_payoffs
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.estimators import EstimatorContext, make_estimator
from hanabi_grpo.training.learned.credit import CreditNetwork, Credits, team_return
from hanabi_grpo.training.learned.heads import PlayerTurns, TurnPlace
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

NAMES = ("player_0", "player_1")
SETUP = registry.setup("hanabi", {"preset": "laptop"})
SPECS = {SETUP.spec.hash: SETUP.spec}
WIDTH = 4
"""Of the model that these features stand for."""
MIXERS = ("vdn", "qmix")
SHARES = ((0.0, 1.0, 2.0, 3.0), (0.0, 2.0, -1.0, 0.5))
"""Points of each player's reply of each kind."""
KINDS_OF_REPLIES = [*itertools.product(range(4), repeat=2)]
"""Every pair of both players' replies."""
TASK_POINTS = (0.0, 4.0)
"""What each of two tasks pays whatever is replied."""


def made_credits(name: str) -> Credits:
    return Credits(Settings(advantage=name), NAMES, SPECS, WIDTH)


def made_game(kinds: tuple[int, int], task_points: float, penalty: float = 0.0) -> Episode:
    """Return a game that pays for the kinds of both players' replies, and for its task."""
    points = task_points + SHARES[0][kinds[0]] + SHARES[1][kinds[1]]
    first = made_turn(0, kinds[0], rewards={"illegal": penalty} if penalty else {})
    second = made_turn(1, kinds[1], rewards={"score": points})
    return made_episode(first, second, spec_hash=SETUP.spec.hash)


def made_groups(penalty: float = 0.0) -> list[list[Episode]]:
    """Return two tasks with a game for every pair of replies."""
    groups = []
    for points in TASK_POINTS:
        groups.append([made_game(kinds, points, penalty) for kinds in KINDS_OF_REPLIES])
    return groups


def made_turns() -> list[PlayerTurns]:
    """Return features that show a turn's task and the kind of its reply."""
    num_games = len(TASK_POINTS) * len(KINDS_OF_REPLIES)
    seen = []
    for player, name in enumerate(NAMES):
        tasks_and_kinds = []
        for game in range(num_games):
            task, pair = divmod(game, len(KINDS_OF_REPLIES))
            tasks_and_kinds.append((task, KINDS_OF_REPLIES[pair][player]))
        one_hot = torch.nn.functional.one_hot(torch.tensor(tasks_and_kinds), WIDTH).float()
        tasks, replies = one_hot.unbind(1)
        places = [TurnPlace(game, player) for game in range(num_games)]
        # As `features.turn_features`: hidden states, message, reply.
        features = torch.cat([replies, tasks, replies], 1)
        seen.append(PlayerTurns(player=name, places=places, features=features))
    return seen


@pytest.mark.parametrize("name", MIXERS)
def test_the_teams_value_falls_with_no_players_part(name: str) -> None:
    torch.manual_seed(0)
    network = CreditNetwork(NAMES, WIDTH, 2, is_monotone=name == "qmix")
    states = torch.randn(50, 2 * WIDTH)
    steps = torch.linspace(-3, 3, 13)
    with torch.no_grad():
        totals = []
        for parts in torch.cartesian_prod(steps, steps):
            totals.append(network.total(parts.repeat(50, 1), states))
        found = torch.stack(totals).view(13, 13, 50)
    first_part_rises = found.diff(dim=0)
    second_part_rises = found.diff(dim=1)
    assert (first_part_rises >= -1e-6).all() and (second_part_rises >= -1e-6).all()
    assert first_part_rises.max() > 0.01
    additive = torch.allclose(first_part_rises, torch.full((12, 13, 50), 0.5))
    assert additive == (name == "vdn"), "the states matter to one of them alone"


@pytest.mark.parametrize("name", MIXERS)
def test_an_additive_return_is_told_apart_into_each_players_share(name: str) -> None:
    groups = made_groups()
    learned = made_credits(name)
    for _ in range(40):
        observation = learned.observe(groups, made_turns())
    assert observation.metrics["credit_explained"] > 0.95
    estimator = make_estimator(name, scale="none")
    context = EstimatorContext(values=observation.values)
    for player, shares in enumerate(SHARES):
        centre = sum(shares) / len(shares)
        for group in groups:
            found = [value for [value] in estimator.advantages(group, player, context)]
            wanted = [shares[game.turns[player].reply_ids[0]] - centre for game in group]
            assert sum(found) == pytest.approx(0.0, abs=1e-4), "the task is taken off"
            # QMIX's parts are in points only as far as the mixer is linear.
            assert found == pytest.approx(wanted, abs=0.3 if name == "vdn" else 1.0)
            assert torch.corrcoef(torch.tensor([found, wanted]))[0, 1] > 0.97


@pytest.mark.parametrize("name", MIXERS)
def test_a_penalty_is_its_own_players_part_and_moves_no_head(name: str) -> None:
    parts = []
    states = []
    for penalty in (0.0, -0.5):
        groups = made_groups(penalty)
        learned = made_credits(name)
        values = learned.observe(groups, made_turns()).values
        game = groups[1][5]
        assert team_return(game) == 4 + 1 + 2
        parts.append([values.share(game, player) for player in range(2)])
        states.append(learned.state())
    assert parts[1] == [pytest.approx(parts[0][0] - 0.5), parts[0][1]]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", MIXERS)
def test_restored_heads_go_on_bit_by_bit(name: str) -> None:
    groups = made_groups()
    turns = made_turns()
    learned = made_credits(name)
    resumed = made_credits(name)
    learned.observe(groups, turns)
    saved = learned.state()
    learned.restore(saved)
    learned.observe(groups, turns)
    # In another order, as when another number of processes has looked.
    resumed.restore(saved)
    resumed.observe(groups, turns[::-1])
    after = learned.state()
    assert all(torch.equal(after[key], value) for key, value in resumed.state().items())


@pytest.mark.parametrize("name", MIXERS)
def test_the_head_of_an_absent_player_rests(name: str) -> None:
    groups = made_groups()
    turns = made_turns()
    learned = made_credits(name)
    for _ in range(2):
        learned.observe(groups, turns)
    before = learned.state()
    learned.observe(groups, turns[:1])
    rested = {}
    for key, value in learned.state().items():
        if ".heads." in key:
            rested[key] = torch.equal(before[key], value)
    assert rested
    for key, is_same in rested.items():
        assert is_same == ("player_1" in key), key
    assert learned.observe([], []).metrics == {}


def test_a_clip_of_each_players_reward_is_refused_where_critics_learn_that_of_a_team() -> None:
    kuhn = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    for name in ("ippo", "mappo"):
        clipped = Settings(advantage=name, reward_clip=1.0)
        with pytest.raises(
            SettingsError, match=f"HANABI_REWARD_CLIP=1 with HANABI_ADVANTAGE={name}: hanabi is a"
        ):
            check_payoffs(clipped, [kuhn, SETUP])
        check_payoffs(clipped, [kuhn])
    check_payoffs(Settings(advantage="turn", reward_clip=1.0), [SETUP])


def test_shares_of_a_return_that_adds_up_to_nothing_are_refused() -> None:
    kuhn = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    for name in MIXERS:
        with pytest.raises(
            SettingsError, match=f"HANABI_ADVANTAGE={name}: .*kuhn_poker.*set ippo, mappo"
        ):
            check_payoffs(Settings(advantage=name), [SETUP, kuhn])
        check_payoffs(Settings(advantage=name), [SETUP])
    check_payoffs(Settings(advantage="mappo"), [kuhn])
