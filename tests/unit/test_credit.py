"""Learned credit: the mixers, what each player's part is, and that it moves only the advantages of
its own player.
"""

import itertools
from dataclasses import replace

import pytest
import torch

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import check_payoffs
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import Estimator
from hanabi_grpo.training.batching import collate, cut_rows, plan_batches
from hanabi_grpo.training.credit import Credits, Mixing, team_return
from hanabi_grpo.training.critic import Critics
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_logps
from hanabi_grpo.training.model.heads import Seen
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.training.valuing import asked_rows, turn_features
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn
from small_models import small_model

NAMES = ("player_0", "player_1")
SETUP = registry.setup("hanabi", {"preset": "laptop"})
SPECS = {SETUP.spec.hash: SETUP.spec}
WIDTH = 4
MIXERS = ("vdn", "qmix")
SHARES = ((0.0, 1.0, 2.0, 3.0), (0.0, 2.0, -1.0, 0.5))
"""Points of each player's reply of each kind."""


def _credits(name: str) -> Credits:
    return Credits(Settings(advantage=name), NAMES, SPECS, WIDTH)


def _game(kinds: tuple[int, int], task: float, penalty: float = 0.0) -> Episode:
    """Return a game that pays for the kinds of both players' replies, and for its task."""
    paid = task + SHARES[0][kinds[0]] + SHARES[1][kinds[1]]
    first = made_turn(0, kinds[0], rewards={"illegal": penalty} if penalty else {})
    return made_episode(
        first, made_turn(1, kinds[1], rewards={"score": paid}), spec_hash=SETUP.spec.hash
    )


def _planted(penalty: float = 0.0) -> tuple[list[list[Episode]], list[Seen]]:
    """Return two tasks with a game for every pair of replies; a turn shows its task and the kind of
    its reply.
    """
    kinds = [*itertools.product(range(4), repeat=2)]
    groups = [[_game(one, task, penalty) for one in kinds] for task in (0.0, 4.0)]
    games = [one for group in groups for one in group]
    seen = []
    for player, name in enumerate(NAMES):
        shown = [
            (int(at >= len(kinds)), kinds[at % len(kinds)][player]) for at in range(len(games))
        ]
        tasks, said = torch.nn.functional.one_hot(torch.tensor(shown), WIDTH).float().unbind(1)
        seen.append(
            (name, [(at, player) for at in range(len(games))], torch.cat([said, tasks, said], 1))
        )
    return groups, seen


@pytest.mark.parametrize("name", MIXERS)
def test_the_teams_value_falls_with_no_players_part(name: str) -> None:
    torch.manual_seed(0)
    mixer = Mixing(NAMES, WIDTH, 2, is_monotone=name == "qmix").total
    states, steps = torch.randn(50, 2 * WIDTH), torch.linspace(-3, 3, 13)
    with torch.no_grad():
        found = torch.stack(
            [mixer(one.repeat(50, 1), states) for one in torch.cartesian_prod(steps, steps)]
        )
    found = found.view(13, 13, 50)
    assert (found.diff(dim=0) >= -1e-6).all() and (found.diff(dim=1) >= -1e-6).all()
    assert found.diff(dim=0).max() > 0.01
    additive = torch.allclose(found.diff(dim=0), torch.full((12, 13, 50), 0.5))
    assert additive == (name == "vdn"), "the states matter to one of them alone"


@pytest.mark.parametrize("name", MIXERS)
def test_an_additive_return_is_told_apart_into_each_players_share(name: str) -> None:
    (groups, seen), learned = _planted(), _credits(name)
    for _ in range(40):
        learned.look(groups, seen)
        metrics = learned.learn()
    assert metrics["credit_explained"] > 0.95
    for player, shares in enumerate(SHARES):
        centre = sum(shares) / len(shares)
        for group in groups:
            found = [value for [value] in learned.estimator()(group, player)]
            wanted = [shares[one.turns[player].reply_ids[0]] - centre for one in group]
            assert sum(found) == pytest.approx(0.0, abs=1e-4), "the task is taken off"
            # QMIX's parts are in points only as far as the mixer is linear.
            assert found == pytest.approx(wanted, abs=0.3 if name == "vdn" else 1.0)
            assert torch.corrcoef(torch.tensor([found, wanted]))[0, 1] > 0.97


@pytest.mark.parametrize("name", MIXERS)
def test_a_penalty_is_its_own_players_part_and_moves_no_head(name: str) -> None:
    parts, states = [], []
    for penalty in (0.0, -0.5):
        (groups, seen), learned = _planted(penalty), _credits(name)
        learned.look(groups, seen)
        learned.learn()
        assert team_return(groups[1][5]) == 4 + 1 + 2
        parts.append([learned.worth(groups[1][5], player) for player in range(2)])
        states.append(learned.state())
    assert parts[1] == [pytest.approx(parts[0][0] - 0.5), parts[0][1]]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", MIXERS)
def test_restored_heads_go_on_bit_by_bit_and_those_of_an_absent_player_rest(name: str) -> None:
    (groups, seen), learned, other = _planted(), _credits(name), _credits(name)
    learned.look(groups, seen)
    learned.learn()
    kept = learned.state()
    # In another order, as when another number of processes has looked.
    for one, shown in ((learned, seen), (other, seen[::-1])):
        one.restore(kept)
        one.look(groups, shown)
        one.learn()
    assert all(torch.equal(learned.state()[key], value) for key, value in other.state().items())
    learned.look(groups, seen[:1])
    before = learned.state()
    learned.learn()
    rested = {
        key: torch.equal(before[key], value)
        for key, value in learned.state().items()
        if ".heads." in key
    }
    assert rested and all(same == ("player_1" in key) for key, same in rested.items())
    learned.look([], [])
    assert learned.learn() == {}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_head_sees_the_states_of_all_tokens_of_a_reply_the_last_one_included(
    shared: bool, fresh: bool
) -> None:
    torch.manual_seed(0)
    model = adapters.add_adapters(small_model(), NAMES, rank=2, alpha=4, seed=0)
    assert share_prefixes(model) or not shared
    games = [
        made_episode(
            replace(made_turn(0, 7, 8, prompt_ids=(1, 2)), fresh=fresh),
            replace(made_turn(0, *reply, prompt_ids=(4, 5)), fresh=fresh),
            seed=seed,
        )
        for seed, reply in enumerate([(9,), (9, 3, 6)])
    ]
    rows = asked_rows([games], 0, ("a", "b"), replies=True)
    [share] = cut_rows(rows, tokens=1000, parts=1, rank=0, world_size=1, shared=shared)
    batch = collate(share, "player_0", 1, 0, torch.device("cpu"), shared)
    found = turn_features(model, model, batch, share, replies=True)
    none = collate([], "player_0", 1, 0, torch.device("cpu"), shared)
    assert turn_features(model, model, none, [], replies=True).shape == (0, 3 * 16)
    places = [place for row in share for place in row.places]
    assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    embedded = model.get_input_embeddings().weight
    for (game, number), features in zip(places, found, strict=True):
        turn, before = games[game].turns[number], [] if fresh else games[game].turns[:number]
        ids = [token for one in (*before, turn) for token in (*one.prompt_ids, *one.reply_ids)]
        hidden = model.get_base_model().model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        said, shown = (
            embedded[list(turn.reply_ids)].mean(0),
            embedded[list(turn.prompt_ids)].mean(0),
        )
        parts = torch.stack([hidden[-len(turn.reply_ids) :].mean(0), shown, said]).detach()
        torch.testing.assert_close(features, torch.nn.functional.layer_norm(parts, (16,)).flatten())


def _step(penalty: float, score: float) -> list[Episode]:
    """Return a group of three games; the penalty is player 0's, in the first of them."""
    games = []
    for number in range(3):
        paid = {"illegal": penalty} if number == 0 else {}
        turns = [
            made_turn(0, 7, 3 + number, rewards=paid, prompt_ids=(1, 2)),
            made_turn(
                1, 5 + number, 8, rewards={"score": float(number) * score}, prompt_ids=(2, 4)
            ),
            made_turn(0, 9, prompt_ids=(6,)),
            made_turn(1, 3, rewards={"score": 1.0 - number % 2}, prompt_ids=(5, 1)),
        ]
        turns = [replace(one, step=step) for step, one in enumerate(turns)]
        games.append(made_episode(*turns, spec_hash=SETUP.spec.hash, game=number))
    return games


def _gradient(
    model: torch.nn.Module, estimator: Estimator, games: list[Episode]
) -> list[torch.Tensor]:
    """Return the gradient of player 1's adapter, of its own micro-batches."""
    sizes = {
        "micro_batches_per_player": 1,
        "rank": 0,
        "world_size": 1,
        "pad_id": 0,
        "device": torch.device("cpu"),
    }
    batches = plan_batches([games], own=("a", "b"), players=NAMES, estimator=estimator, **sizes)
    adapters.use_adapter(model, "player_1")
    for batch in batches:
        data = batch["grpo_batch"]
        if data.player == "player_1":
            logps = reply_logps(
                model, model, batch["model_inputs"]["input_ids"], data.completion_mask, 1.0
            )
            PolicyLoss(Settings())(logps, data)[0].backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert found and all(".player_1." in name for name in found)
    model.zero_grad()
    return [*found.values()]


@pytest.mark.parametrize("name", ["ippo", "mappo", *MIXERS])
def test_what_one_player_pays_moves_no_adapter_of_another_but_what_the_team_is_paid_does(
    name: str,
) -> None:
    torch.manual_seed(0)
    model = adapters.add_adapters(small_model(), NAMES, rank=2, alpha=4, seed=0)
    settings, gradients = Settings(advantage=name), []
    for penalty, score in ((0.0, 1.0), (-5.0, 1.0), (0.0, 2.0)):
        judge = (Credits if name in MIXERS else Critics)(
            settings, NAMES, SPECS, 16 if name in MIXERS else 32
        )
        games, seen = _step(penalty, score), []
        for seat, player in enumerate(NAMES):
            adapters.use_adapter(model, player)
            rows = asked_rows([games], seat, ("a", "b"), replies=name in MIXERS)
            batch = collate(rows, player, 1, 0, torch.device("cpu"))
            features = turn_features(model, model, batch, rows, replies=name in MIXERS)
            seen.append((player, [place for row in rows for place in row.places], features))
        judge.look([games], seen)
        judge.learn()
        assert all(one.grad is None for one in model.parameters())
        gradients.append(_gradient(model, judge.estimator(), games))
    plain, penalised, paid = gradients
    assert any(one.abs().max() > 0 for one in plain)
    assert all(torch.equal(one, other) for one, other in zip(plain, penalised, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(plain, paid, strict=True))


def test_shares_of_a_return_that_adds_up_to_nothing_are_refused() -> None:
    kuhn = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    for name in MIXERS:
        with pytest.raises(
            SettingsError, match=f"HANABI_ADVANTAGE={name}: .*kuhn_poker.*take mappo, ippo"
        ):
            check_payoffs(Settings(advantage=name), [SETUP, kuhn])
        check_payoffs(Settings(advantage=name), [SETUP])
    check_payoffs(Settings(advantage="mappo"), [kuhn])
