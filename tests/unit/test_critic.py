"""Critics: the advantages of their chains, what they learn, and that a resumed one goes on where it
was.
"""

import random
from dataclasses import replace

import pytest
import torch

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import EnvSpec
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import choose_estimator
from hanabi_grpo.training.batching import collate, cut_rows
from hanabi_grpo.training.comparing import lambda_advantages, own_turns
from hanabi_grpo.training.critic import Critic, Critics, joint_features
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_features
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.training.valuing import asked_rows, span_means
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn
from small_models import small_model

NAMES = ("player_0", "player_1")
WIDTH = 8
TEAM = registry.setup("hanabi", {"preset": "laptop"}).spec
RIVALS = registry.setup("kuhn_poker", {"preset": "kuhn_poker"}).spec


def _game(num_turns: int, seed: int, **other: object) -> Episode:
    """Return a game in which the players take turns, with random rewards for each."""
    drawn = random.Random(seed)
    turns = []
    for step in range(num_turns):
        turn = made_turn(step % 2, 5, 6, prompt_ids=(1, 2, 3))
        paid = tuple({"score": drawn.uniform(-1, 1)} for _ in range(2))
        turns.append(replace(turn, step=step, rewards=paid))
    return made_episode(*turns, spec_hash=TEAM.hash, **other)


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_a_chain_weighs_what_comes_later_as_the_definition_does(decay: float) -> None:
    game = _game(9, seed=1)
    # Nobody was asked in turn 2, as when a script sits there; the first player's critic alone knows
    # turn 6.
    chain = {number: float(number) ** 0.5 for number in (1, 3, 4, 6, 8)}
    found = lambda_advantages(game, 0, chain, decay)
    places = [*chain]
    deltas = []
    for place, following in zip(places, [*places[1:], None], strict=True):
        received = sum(one.reward(0) for one in game.turns[place:following])
        deltas.append(received + (chain[following] if following else 0.0) - chain[place])
    for index, place in enumerate(places):
        expected = sum(decay**ahead * delta for ahead, delta in enumerate(deltas[index:]))
        assert found[place] == pytest.approx(expected)
    assert found.keys() == chain.keys()


def test_players_of_one_step_do_not_answer_each_other() -> None:
    both = [replace(one, step=0) for one in _game(2, seed=2).turns]
    game = made_episode(*both, spec_hash=TEAM.hash)
    found = lambda_advantages(game, 1, {0: 5.0, 1: 2.0}, 0.9)
    assert found == {0: pytest.approx(game.reward(1) - 2.0), 1: pytest.approx(game.reward(1) - 2.0)}


def test_without_a_critic_and_decay_it_is_what_comes_from_a_turn_on() -> None:
    games = [_game(length, seed=length) for length in (3, 6)]
    for player in range(2):
        plain = choose_estimator("return_to_go")(games, player)
        assert choose_estimator("ippo", "none")(games, player) == [
            pytest.approx(game) for game in plain
        ]


def _critics(
    advantage: str = "ippo", width: int = WIDTH, specs: tuple[EnvSpec, ...] = (TEAM, RIVALS)
) -> Critics:
    return Critics(Settings(advantage=advantage), NAMES, {one.hash: one for one in specs}, width)


def _seen(games: list[Episode]) -> list[tuple[str, list[tuple[int, int]], torch.Tensor]]:
    """Return features that say how many turns are to come, at every turn."""
    found = []
    for player, name in enumerate(NAMES):
        places = [
            (at, number) for at, game in enumerate(games) for number in own_turns(game, player)
        ]
        left = torch.tensor([len(games[game].turns) - number for game, number in places])
        found.append((name, places, torch.nn.functional.one_hot(left, WIDTH).float()))
    return found


def _worth_their_length(count: int) -> list[Episode]:
    """Return games in which every turn pays a point: a state is worth the number of turns to
    come.
    """
    games = [_game(2 + seed % 5, seed) for seed in range(count)]
    return [
        replace(
            game, turns=tuple(replace(turn, rewards=({"score": 1.0},) * 2) for turn in game.turns)
        )
        for game in games
    ]


def test_a_critic_learns_what_a_state_is_worth_and_takes_it_off() -> None:
    games, critics = _worth_their_length(100), _critics()
    for _ in range(60):
        critics.look([games], _seen(games))
        explained = critics.learn()
    assert all(value > 0.95 for value in explained.values()), explained
    critics.look([games], _seen(games))
    # In points, not in shares of the most that the board pays.
    error = [
        abs(value - (len(game.turns) - number))
        for game in games
        for number, value in critics.chain(game, 0).items()
    ]
    assert sum(error) / len(error) < 0.4
    left = choose_estimator("ippo", "none", chain=critics.chain, decay=0.95)(games, 0)
    plain = choose_estimator("return_to_go")(games, 0)
    assert sum(abs(value) for game in left for value in game) < 0.3 * sum(
        abs(value) for game in plain for value in game
    )


def test_a_team_shares_one_chain_and_rivals_have_one_each() -> None:
    team, critics = _game(4, seed=0), _critics()
    rivals = replace(team, spec_hash=RIVALS.hash)
    critics.look([[team, rivals]], _seen([team, rivals]))
    assert [*critics.chain(team, 0)] == [*critics.chain(team, 1)] == [0, 2, 1, 3]
    assert [*critics.chain(rivals, 0)], [*critics.chain(rivals, 1)] == ([0, 2], [1, 3])


@pytest.mark.parametrize(("advantage", "name"), [("ippo", "player_0"), ("mappo", "team")])
def test_a_restored_critic_goes_on_bit_by_bit(advantage: str, name: str) -> None:
    games, critics, other = _worth_their_length(30), _critics(advantage), _critics(advantage)
    critics.look([games], _seen(games))
    critics.learn()
    kept = critics.state()
    for one in (critics, other):
        one.restore(kept)
        one.look([games], _seen(games))
        one.learn()
    assert all(torch.equal(critics.state()[key], value) for key, value in other.state().items())
    assert not torch.equal(kept[f"{name}|head.0.weight"], critics.state()[f"{name}|head.0.weight"])


def test_what_the_players_of_one_run_have_learned_stays_apart() -> None:
    games, both, alone = _worth_their_length(30), _critics(), _critics()
    both.look([games], _seen(games))
    both.learn()
    alone.look([games], [one for one in _seen(games) if one[0] == "player_0"])
    # In a chain of its own turns: the other's values are no part of the state.
    own = {name for name in alone.learn()}
    assert own == {"player_0/value_explained"}
    assert torch.equal(
        alone.state()["player_1|head.0.weight"], _critics().state()["player_1|head.0.weight"]
    )


@pytest.mark.parametrize("fresh", [False, True])
def test_a_row_ends_with_the_first_token_of_its_last_reply(fresh: bool) -> None:
    turns = [
        replace(made_turn(0, 7, 8, prompt_ids=(1, 2)), fresh=fresh),
        made_turn(1, 9, prompt_ids=(3,)),
        # A conversation that is full: no prompt, no reply.
        replace(made_turn(0, 7, prompt_ids=(4, 5, 6)), fresh=fresh),
        made_turn(0),
    ]
    rows = asked_rows([[made_episode(*turns)]], 0, ("player_0@1", "player_1@1"))
    if fresh:
        assert [row.ids for row in rows] == [[1, 2, 7, 8], [4, 5, 6, 7]]
        assert [row.places for row in rows] == [[(0, 0)], [(0, 2)]]
    else:
        [row] = rows
        assert row.ids == [1, 2, 7, 8, 4, 5, 6, 7] and row.places == [(0, 0), (0, 2)]
        assert row.mask == [False, False, True, False, False, False, False, True]
    assert not asked_rows(
        [[made_episode(*turns, seats=("iggi", "player_1@1"))]], 0, ("player_0@1", "player_1@1")
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_critic_sees_what_the_output_head_reads_at_the_end_of_each_prompt(shared: bool) -> None:
    torch.manual_seed(0)
    model = adapters.add_adapters(small_model(), NAMES, rank=2, alpha=4, seed=0)
    games = [
        made_episode(
            made_turn(0, 7, 8, prompt_ids=(1, 2)), made_turn(0, 9, prompt_ids=prompt), seed=seed
        )
        for seed, prompt in enumerate([(4, 5), (4, 6, 3), (2,)])
    ]
    rows = asked_rows([games], 0, ("a", "b"))
    states = []
    for row in rows:
        hidden = (
            model.get_base_model().model(input_ids=torch.tensor([row.ids])).last_hidden_state[0]
        )
        states += [hidden[at - 1] for at, asked in enumerate(row.mask) if asked]
    expected = {
        place: one
        for place, one in zip((one for row in rows for one in row.places), states, strict=True)
    }
    assert share_prefixes(model) or not shared
    [share] = cut_rows(rows, tokens=1000, parts=1, rank=0, world_size=1, shared=shared)
    batch = collate(share, "player_0", 1, 0, torch.device("cpu"), shared)
    data = batch["grpo_batch"]
    found = reply_features(
        model, model, batch["model_inputs"]["input_ids"], data.completion_mask, data.tree
    )
    places = [place for row in share for place in row.places]
    assert sorted(places) == sorted(expected) and not found.requires_grad
    for place, features in zip(places, found, strict=True):
        torch.testing.assert_close(features, expected[place].detach())


def test_the_other_half_of_what_a_critic_sees_is_the_mean_of_each_message() -> None:
    turns = [made_turn(0, 7, 8, prompt_ids=(1, 2)), made_turn(0, 7, prompt_ids=(4, 5, 6))]
    embeddings = torch.nn.Embedding(10, 4)
    rows = asked_rows(
        [[made_episode(*turns), made_episode(made_turn(0, 9, prompt_ids=(3,)))]], 0, ("a", "b")
    )
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
    found = span_means(embeddings, ids, [row.messages for row in rows])
    expected = [embeddings.weight[list(message)].mean(0) for message in [(1, 2), (4, 5, 6), (3,)]]
    torch.testing.assert_close(found, torch.stack(expected).detach())
    assert span_means(embeddings, ids, [[], []]).shape == (0, 4)


def test_the_joint_state_is_every_seats_latest_prompt_with_the_one_who_is_asked_first() -> None:
    # Seat 1 moves first; then both at once; seat 0 again, where a script sits; and seat 1.
    seats = [(1, 0), (0, 1), (1, 1), (0, 2), (1, 3)]
    game = made_episode(
        *(replace(made_turn(seat, 5, prompt_ids=(1,)), step=step) for seat, step in seats)
    )
    places = [(3, 0), (3, 1), (3, 2), (3, 4)]
    found = joint_features(
        [game] * 4, places, torch.tensor([[1.0], [2.0], [3.0], [5.0]]), num_seats=3
    )
    # Own prompt, the other's, room for a third seat, and who is asked.
    assert found.tolist() == [
        [1.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [2.0, 3.0, 0.0, 1.0, 0.0, 0.0],
        [3.0, 2.0, 0.0, 0.0, 1.0, 0.0],
        [5.0, 2.0, 0.0, 0.0, 1.0, 0.0],
    ]


def test_a_central_critic_knows_what_the_other_seat_sees_and_one_of_its_own_does_not() -> None:
    drawn = random.Random(0)
    bits = [(drawn.randrange(2), drawn.randrange(2)) for _ in range(200)]
    games = []
    for own, other in bits:
        # Both are asked at once, and are paid alike for what only both together know.
        turns = [made_turn(seat, 5, rewards={"score": float(own != other)}) for seat in range(2)]
        games.append(made_episode(*turns, spec_hash=TEAM.hash))
    shown = torch.nn.functional.one_hot(torch.tensor(bits), 2).float()
    seen = [
        (name, [(at, seat) for at in range(200)], shown[:, seat]) for seat, name in enumerate(NAMES)
    ]
    for advantage, knows in (("mappo", True), ("ippo", False)):
        critics = _critics(advantage, width=2)
        for _ in range(60):
            critics.look([games], seen)
            explained = critics.learn()
        assert explained.keys() == (
            {"team/value_explained"} if knows else {f"{one}/value_explained" for one in NAMES}
        )
        assert all(value > 0.95 if knows else value < 0.1 for value in explained.values()), (
            explained
        )


def test_central_critics_are_one_for_a_team_and_one_for_each_seat_of_rivals() -> None:
    names = [
        {key.partition("|")[0] for key in _critics("mappo", specs=one).state()}
        for one in ((TEAM,), (RIVALS,))
    ]
    assert names == [{"team"}, {"seat_0", "seat_1"}]
    games = [replace(one, spec_hash=RIVALS.hash) for one in _worth_their_length(20)]
    critics = _critics("mappo", specs=(RIVALS,))
    critics.look([games], _seen(games))
    assert critics.learn().keys() == {"seat_0/value_explained", "seat_1/value_explained"}
    assert [*critics.chain(games[3], 1)] == [1, 3] and len(critics.estimator()(games, 1)) == 20
    critics.look([], [])
    assert critics.learn() == {}


def test_a_critic_knows_nothing_at_first() -> None:
    assert Critic(3, 1e-3, "a").values(torch.ones(2, 3)).tolist() == [0.0, 0.0]
