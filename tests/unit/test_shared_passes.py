"""Players' last micro-batches share a pass, which changes no gradient and no other player."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.training import policy as policy_module
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow, collate
from hanabi_grpo.training.model.adapters import add_adapters
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.shared_passes import shared_passes
from hanabi_grpo.types import Episode, Turn, player_names
from loop_parts import NAMES, RunOfATest, same_weights, written_games
from made_games import made_turn
from small_models import small_model

TEAM = player_names(3)
RANKS = {"player_0": 4, "player_1": 1, "player_2": 6}
DTYPES = [torch.float32, torch.bfloat16]
VOCABULARY = 16
Gradients = dict[str, torch.Tensor]


def made_model(dtype: torch.dtype = torch.float32, names: Sequence[str] = TEAM) -> Any:
    """Return a model of two layers, whose adapters have unequal ranks and do something."""
    torch.manual_seed(0)
    base = small_model(
        num_hidden_layers=2, num_attention_heads=2, head_dim=8, intermediate_size=24
    ).to(dtype)
    ranks = {name: RANKS.get(name, 4) for name in names}
    model = add_adapters(base, names, rank=ranks, alpha=8, seed=1)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.2)
    return model.train()


def made_policy(dtype: torch.dtype = torch.float32, names: Sequence[str] = TEAM) -> Policy:
    """Return a policy of such a model."""
    return Policy(made_model(dtype, names), names, temperature=0.7, has_whole_weights=True)


def made_batch(player: str, lengths: Sequence[int], seed: int, shared: bool = True) -> MicroBatch:
    """Return a micro-batch of random rows that begin alike; without lengths one of nothing."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(count: int) -> list[float]:
        return torch.randn(count, generator=generator).tolist()

    rows = []
    beginning = torch.randint(1, VOCABULARY, (3,), generator=generator).tolist()
    for length in lengths:
        ids = torch.randint(1, VOCABULARY, (length - 3,), generator=generator).tolist()
        mask = [position > 2 and position % 2 == 1 for position in range(length)]
        rows.append(
            TokenRow(
                ids=[*beginning, *ids],
                mask=mask,
                logprobs=[-2.0 * is_reply for is_reply in mask],
                advantages=[
                    value * is_reply for value, is_reply in zip(numbers(length), mask, strict=True)
                ],
            )
        )
    num_replies = sum(sum(row.mask) for row in rows)
    return collate(rows, player, num_replies, 0, torch.device("cpu"), shared)


def take_gradients(policy: Policy) -> Gradients:
    gradients = {}
    for name, value in policy.adapter_parameters.items():
        if value.grad is not None:
            gradients[name] = value.grad
            value.grad = None
    return gradients


def gradients_of(policy: Policy, passes: Sequence[Sequence[MicroBatch]]) -> Gradients:
    """Return the gradients of the run's loss over micro-batches, in these passes."""
    loss_of = PolicyLoss(Settings())
    for batches in passes:
        if len(batches) > 1:
            logprobs = policy.shared_logprobs(batches)
        else:
            logprobs = [policy.logprobs(batch) for batch in batches]
        losses = [loss_of(each, batch)[0] for each, batch in zip(logprobs, batches, strict=True)]
        sum(losses[1:], start=losses[0]).backward()
    return take_gradients(policy)


def of_player(gradients: Gradients, player: str) -> Gradients:
    return {name: value for name, value in gradients.items() if f".{player}." in name}


def assert_equal(found: Gradients, expected: Gradients) -> None:
    """Check that gradients are equal, bit by bit."""
    assert found.keys() == expected.keys()
    assert [name for name, value in found.items() if not torch.equal(value, expected[name])] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_shared_pass_has_the_gradients_of_separate_ones_bit_by_bit(
    dtype: torch.dtype, threads: int
) -> None:
    policy = made_policy(dtype)
    assert policy.shares_passes
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed, lengths in enumerate(
            # A player with a single token to predict, one with more rows, one without any.
            [([4], [9, 7, 12], [30] * 5), ([5, 6], [60] * 9, [4]), ([8, 8], [], [11])]
        ):
            batches = [
                made_batch(name, of_player, seed)
                for name, of_player in zip(TEAM, lengths, strict=True)
            ]
            apart = gradients_of(policy, [[batch] for batch in batches])
            together = gradients_of(policy, [batches])
            assert_equal(together, apart)
            for name, of_player in zip(TEAM, lengths, strict=True):
                found = [value for key, value in together.items() if f".{name}." in key]
                assert any(value.any() for value in found) == bool(of_player)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_other_players_rows_tokens_or_rewards_move_a_players_gradient(
    dtype: torch.dtype,
) -> None:
    policy = made_policy(dtype)
    own = made_batch("player_0", [7, 9], 1)
    expected = of_player(gradients_of(policy, [[own]]), "player_0")
    others = [
        made_batch("player_1", [7, 9], 2),
        made_batch("player_1", [6], 3),
        made_batch("player_1", [40] * 11, 4),
        replace(made_batch("player_1", [7, 9], 2), num_reply_tokens=1),
        made_batch("player_1", [], 5),
    ]
    poisoned = made_batch("player_1", [7, 9], 2)
    poisoned.advantages = poisoned.advantages * float("nan")
    different = []
    for other in (*others, poisoned):
        for batches in ([own, other], [other, own]):
            gradients = gradients_of(policy, [batches])
            assert_equal(of_player(gradients, "player_0"), expected)
        different.append(of_player(gradients, "player_1"))
    assert all(not torch.isfinite(value).all() for value in different[-1].values())
    for one, two in pairwise(different):
        assert any(not torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_are_computed_again_have_the_same_owners(reentrant: bool) -> None:
    policy = made_policy()
    batches = [made_batch(name, [9, 12], number) for number, name in enumerate(TEAM)]
    expected = gradients_of(policy, [[batch] for batch in batches])
    policy.model.get_base_model().gradient_checkpointing_enable({"use_reentrant": reentrant})
    policy.model.enable_input_require_grads()
    found = gradients_of(policy, [batches])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_a_pass_of_one_player_follows_a_shared_one_with_its_adapter_alone() -> None:
    policy = made_policy()
    batches = [made_batch(name, [9, 12], number) for number, name in enumerate(TEAM)]
    expected = [policy.fixed_logprobs(batch) for batch in batches]
    shared = policy.shared_logprobs(batches)
    for batch, alone, found in zip(batches, expected, shared, strict=True):
        assert torch.equal(found, alone)
        assert torch.equal(policy.fixed_logprobs(batch), alone)
        assert not torch.equal(policy.reference_logprobs(batch), alone)


def test_a_model_without_trees_or_with_one_adapter_or_sharded_weights_shares_no_pass() -> None:
    assert not made_policy(names=("shared",)).shares_passes
    sharded = Policy(made_model(), TEAM, temperature=1.0, has_whole_weights=False)
    assert not sharded.shares_passes
    eager = made_model()
    eager.get_base_model().set_attn_implementation("eager")
    without_trees = Policy(eager, TEAM, temperature=1.0, has_whole_weights=True)
    assert not without_trees.shares_prefixes
    assert not without_trees.shares_passes


def test_a_layer_that_meets_other_rows_than_the_passs_makes_players_pass_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = made_model()
    mlp = model.get_decoder().layers[0].mlp
    forward = mlp.forward
    # As experts do, each of which computes some of the tokens.
    mlp.forward = lambda x: torch.cat([forward(x[:, :5]), forward(x[:, 5:])], dim=1)
    with caplog.at_level("INFO", logger=policy_module.__name__):
        policy = Policy(model, TEAM, temperature=1.0, has_whole_weights=True)
    assert policy.shares_prefixes
    assert not policy.shares_passes
    assert "each player has separate forward passes: a layer was called with a" in caplog.text


def weighed(player: str, *weights: float) -> list[MicroBatch]:
    batches = []
    for weight in weights:
        batch = made_batch(player, [5], 0)
        batch.weight = weight
        batches.append(batch)
    return batches


def test_last_micro_batches_share_passes_that_keep_the_limit_and_full_ones_come_first() -> None:
    batches = [
        *weighed("player_0", 100, 90, 30),
        *weighed("player_1", 60),
        *weighed("player_2", 99, 20),
        *weighed("player_3", 40),
        *weighed("player_4", 120),
    ]
    passes = shared_passes(batches, 100)
    planned = [[(batch.player, batch.weight) for batch in batches] for batches in passes]
    assert planned == [
        [("player_0", 100)],
        [("player_0", 90)],
        [("player_2", 99)],
        [("player_0", 30), ("player_1", 60)],
        [("player_2", 20), ("player_3", 40)],
        [("player_4", 120)],
    ]


def with_other_games_of_player_1(step: int) -> list[list[Episode]]:
    """Return the written games with longer replies of player 1, to another prompt."""
    groups = []
    for group in written_games(step):
        games = []
        for number, game in enumerate(group):
            first, second = game.turns
            other: Turn = made_turn(
                1,
                *(3 + (token + number) % 11 for token in range(12 - 5 * number)),
                prompt_ids=(9, 9, 4),
                version=step,
                rewards={"score": 0.5},
            )
            games.append(replace(game, turns=(first, replace(other, step=second.step))))
        groups.append(games)
    return groups


PARTS = {"tasks_per_step": 2, "minibatches": 2}
SEQUENTIAL = {"update": "sequential", "updates_per_step": 2}


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, apart: bool, **options: Any
) -> RunOfATest:
    """Return a run of three steps, perhaps with separate passes."""
    with monkeypatch.context() as patch:
        if apart:
            patch.setattr(policy_module, "can_share_passes", lambda *_: "as it was")
        made = RunOfATest(folder, **options)
    assert made.policy.shares_passes == (not apart)
    train(made.run)
    return made


def num_passes(made: RunOfATest) -> int:
    """Return how many passes with a gradient a run has made; an update follows on some of them."""
    calls = made.events.calls
    return calls.count("end_micro_batch") + calls.count("before_update")


@pytest.mark.parametrize(
    ("options", "apart_passes", "shared_passes"),
    [
        ({}, 6, 3),
        ({"updates_per_step": 2, "lora_rank": "player_0=8,player_1=16"}, 12, 6),
        (PARTS, 12, 6),
        # A player is alone in its updates.
        (SEQUENTIAL, 12, 12),
        # One of player 1's two micro-batches is full.
        ({"games": with_other_games_of_player_1, "tokens_per_micro_batch": 19}, 9, 6),
    ],
    ids=["plain", "ranks", "minibatches", "sequential", "cut"],
)
def test_a_run_that_shares_passes_moves_every_adapter_as_one_that_does_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    apart_passes: int,
    shared_passes: int,
) -> None:
    apart = trained(tmp_path / "apart", monkeypatch, apart=True, **options)
    together = trained(tmp_path / "together", monkeypatch, apart=False, **options)
    assert num_passes(apart) == apart_passes
    assert num_passes(together) == shared_passes
    for player in NAMES:
        assert same_weights(together.weights(player), apart.weights(player))
    for row, expected in zip(together.events.rows, apart.events.rows, strict=True):
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            if not name.startswith(("time/", "memory/", "tokens/", "step_time")):
                assert row[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_another_players_games_change_no_bit_of_a_players_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(tmp_path / "first", monkeypatch, apart=False)
    other = trained(
        tmp_path / "other", monkeypatch, apart=False, games=with_other_games_of_player_1
    )
    assert same_weights(first.weights("player_0"), other.weights("player_0"))
    assert not same_weights(first.weights("player_1"), other.weights("player_1"))
    for row, expected in zip(first.events.rows, other.events.rows, strict=True):
        assert row["player_0/grad_norm"] == expected["player_0/grad_norm"] > 0


def test_a_player_without_data_has_neither_a_gradient_nor_moments(tmp_path: Path) -> None:
    def without_player_1(step: int) -> list[list[Episode]]:
        groups = written_games(step)
        return [[replace(game, turns=game.turns[:1]) for game in group] for group in groups]

    made = RunOfATest(tmp_path, num_steps=2, games=without_player_1)
    assert made.policy.shares_passes
    before = made.weights("player_1")
    seen: list[bool] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        [group] = [group for group in optimizer.param_groups if group["player"] == "player_1"]
        seen.append(any(value.grad is not None for value in group["params"]))

    made.optimizer.register_step_pre_hook(look)
    train(made.run)
    assert seen == [False, False]
    assert same_weights(before, made.weights("player_1"))
    moved = {parameter for parameter, state in made.optimizer.state.items() if state}
    assert moved == set(made.optimizer.param_groups[0]["params"])
