"""What critics and heads of credit are shown: tokens, hidden states, and that no adapter learns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from hanabi_grpo.envs import registry
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import build_micro_batches, cut_rows
from hanabi_grpo.training.estimators import EstimatorContext, make_estimator
from hanabi_grpo.training.learned.features import TurnRow, span_means, turn_features, turn_rows
from hanabi_grpo.training.learned.heads import Observation, TurnPlace
from hanabi_grpo.training.learned.value_learner import ValueLearner, make_learners
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch, collate
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_features, reply_logps
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.types import Episode, Turn
from made_batches import made_cut
from made_games import made_episode, made_turn
from small_models import small_model

NAMES = ("player_0", "player_1")
OWN = ("a", "b")
"""Policy specs of games that do not say who sat in their seats."""
SETUP = registry.setup("hanabi", {"preset": "laptop"})
SPECS = {SETUP.spec.hash: SETUP.spec}
MODEL_WIDTH = 16
"""Of `small_model`."""
PAD_ID = 0
CPU = torch.device("cpu")


def made_model(*, shared: bool = False) -> Any:
    """Return a small model with an adapter for each player."""
    torch.manual_seed(0)
    model = adapters.add_adapters(small_model(), NAMES, rank=2, alpha=4, seed=0)
    if shared:
        assert share_prefixes(model)
    return model


def in_one_micro_batch(rows: list[TurnRow], *, shared: bool) -> list[TurnRow]:
    [micro_batch] = cut_rows(rows, made_cut(tokens=1000, shared=shared))
    return micro_batch


def batch_of(rows: Sequence[TurnRow], *, shared: bool = False) -> MicroBatch:
    return collate(rows, "player_0", 1, PAD_ID, CPU, shared)


def places_of(rows: Sequence[TurnRow]) -> list[TurnPlace]:
    return [place for row in rows for place in row.places]


def turns_of_which_one_is_not_answered(*, fresh: bool) -> list[Turn]:
    return [
        replace(made_turn(0, 7, 8, prompt_ids=(1, 2)), fresh=fresh),
        made_turn(1, 9, prompt_ids=(3,)),
        replace(made_turn(0, 7, prompt_ids=(4, 5, 6)), fresh=fresh),
        # A conversation that is full: no prompt, no reply.
        made_turn(0),
    ]


def test_a_row_ends_with_the_first_token_of_its_last_reply() -> None:
    episode = made_episode(*turns_of_which_one_is_not_answered(fresh=False))
    [row] = turn_rows([[episode]], 0, OWN)
    assert row.ids == [1, 2, 7, 8, 4, 5, 6, 7]
    assert row.places == [(0, 0), (0, 2)]
    assert row.mask == [False, False, True, False, False, False, False, True]


def test_each_turn_is_a_row_where_it_is_a_conversation_of_its_own() -> None:
    episode = made_episode(*turns_of_which_one_is_not_answered(fresh=True))
    rows = turn_rows([[episode]], 0, OWN)
    assert [row.ids for row in rows] == [[1, 2, 7, 8], [4, 5, 6, 7]]
    assert [row.places for row in rows] == [[(0, 0)], [(0, 2)]]


@pytest.mark.parametrize("fresh", [False, True])
def test_the_turns_of_a_partner_are_not_looked_at(fresh: bool) -> None:
    turns = turns_of_which_one_is_not_answered(fresh=fresh)
    episode = made_episode(*turns, seats=("iggi", "player_1@1"))
    assert not turn_rows([[episode]], 0, ("player_0@1", "player_1@1"))


@pytest.mark.parametrize("shared", [False, True])
def test_a_critic_sees_what_the_output_head_reads_at_the_end_of_each_prompt(shared: bool) -> None:
    model = made_model()
    games = []
    for seed, prompt in enumerate([(4, 5), (4, 6, 3), (2,)]):
        first = made_turn(0, 7, 8, prompt_ids=(1, 2))
        games.append(made_episode(first, made_turn(0, 9, prompt_ids=prompt), seed=seed))
    rows = turn_rows([games], 0, OWN)
    expected = {}
    for row in rows:
        output = model.get_base_model().model(input_ids=torch.tensor([row.ids]))
        hidden = output.last_hidden_state[0]
        prompt_ends = [position - 1 for position, marked in enumerate(row.mask) if marked]
        for place, position in zip(row.places, prompt_ends, strict=True):
            expected[place] = hidden[position].detach()

    assert share_prefixes(model) or not shared
    micro_batch = in_one_micro_batch(rows, shared=shared)
    batch = batch_of(micro_batch, shared=shared)
    hidden_states = reply_features(model, model, batch.ids, batch.reply_mask, batch.tree)
    places = places_of(micro_batch)
    assert sorted(places) == sorted(expected)
    assert not hidden_states.requires_grad
    for place, features in zip(places, hidden_states, strict=True):
        torch.testing.assert_close(features, expected[place])


def test_the_other_half_of_what_a_critic_sees_is_the_mean_of_each_message() -> None:
    embeddings = torch.nn.Embedding(10, 4)
    first = made_episode(
        made_turn(0, 7, 8, prompt_ids=(1, 2)), made_turn(0, 7, prompt_ids=(4, 5, 6))
    )
    second = made_episode(made_turn(0, 9, prompt_ids=(3,)))
    rows = turn_rows([[first, second]], 0, OWN)
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
    means = span_means(embeddings, ids, [row.messages for row in rows])
    messages = [(1, 2), (4, 5, 6), (3,)]
    expected = [embeddings.weight[list(message)].mean(0) for message in messages]
    torch.testing.assert_close(means, torch.stack(expected).detach())
    assert span_means(embeddings, ids, [[], []]).shape == (0, 4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_head_sees_the_states_of_all_tokens_of_a_reply_the_last_one_included(
    shared: bool, fresh: bool
) -> None:
    model = made_model(shared=shared)
    games = []
    for seed, reply in enumerate([(9,), (9, 3, 6)]):
        first = replace(made_turn(0, 7, 8, prompt_ids=(1, 2)), fresh=fresh)
        second = replace(made_turn(0, *reply, prompt_ids=(4, 5)), fresh=fresh)
        games.append(made_episode(first, second, seed=seed))
    micro_batch = in_one_micro_batch(turn_rows([games], 0, OWN, replies=True), shared=shared)
    batch = batch_of(micro_batch, shared=shared)
    all_features = turn_features(model, model, batch, micro_batch, replies=True)
    places = places_of(micro_batch)
    assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1)]

    embeddings = model.get_input_embeddings().weight
    for (game, number), features in zip(places, all_features, strict=True):
        turn = games[game].turns[number]
        conversation = [turn] if fresh else games[game].turns[: number + 1]
        ids = []
        for earlier in conversation:
            ids.extend(earlier.prompt_ids)
            ids.extend(earlier.reply_ids)
        output = model.get_base_model().model(input_ids=torch.tensor([ids]))
        hidden = output.last_hidden_state[0]
        parts = [
            hidden[-len(turn.reply_ids) :].mean(0),
            embeddings[list(turn.prompt_ids)].mean(0),
            embeddings[list(turn.reply_ids)].mean(0),
        ]
        expected = torch.nn.functional.layer_norm(torch.stack(parts), (MODEL_WIDTH,)).flatten()
        torch.testing.assert_close(features, expected.detach())


@pytest.mark.parametrize("shared", [False, True])
def test_rows_without_turns_call_the_model_all_the_same(shared: bool) -> None:
    model = made_model(shared=shared)
    batch = batch_of([], shared=shared)
    features = turn_features(model, model, batch, [], replies=True)
    assert features.shape == (0, 3 * MODEL_WIDTH)


class OneProcess:
    """Stands for accelerate in a test of one process."""

    process_index = 0
    num_processes = 1


def made_value_learner(name: str, model: Any) -> ValueLearner:
    settings = Settings(advantage=name)
    learners = make_learners(settings, NAMES, SPECS, MODEL_WIDTH)
    assert learners is not None
    return ValueLearner(
        learners,
        policy=Policy(model, NAMES, temperature=1.0, has_whole_weights=True),
        accelerator=OneProcess(),  # type: ignore[arg-type]
        cut=made_cut(tokens=2048),
        pad_id=PAD_ID,
    )


def step_games(penalty: float, score: float) -> list[Episode]:
    """Return a group of three games; the penalty is player 0's, in the first of them."""
    games = []
    for number in range(3):
        penalties = {"illegal": penalty} if number == 0 else {}
        points = {"score": float(number) * score}
        turns = [
            made_turn(0, 7, 3 + number, rewards=penalties, prompt_ids=(1, 2)),
            made_turn(1, 5 + number, 8, rewards=points, prompt_ids=(2, 4)),
            made_turn(0, 9, prompt_ids=(6,)),
            made_turn(1, 3, rewards={"score": 1.0 - number % 2}, prompt_ids=(5, 1)),
        ]
        turns = [replace(turn, step=step) for step, turn in enumerate(turns)]
        games.append(made_episode(*turns, spec_hash=SETUP.spec.hash, game=number))
    return games


def gradient_of_player_1(
    model: torch.nn.Module, name: str, observation: Observation, games: list[Episode]
) -> list[torch.Tensor]:
    """Return the gradient of player 1's adapter, of its own micro-batches."""
    batches = build_micro_batches(
        [games],
        trained_seats=OWN,
        players=NAMES,
        estimator=make_estimator(name, gae_lambda=Settings().gae_lambda),
        context=EstimatorContext(values=observation.values),
        cut=made_cut(),
        pad_id=PAD_ID,
        device=CPU,
    )
    adapters.use_adapter(model, "player_1")
    for batch in batches:
        if batch.player == "player_1":
            logps = reply_logps(model, model, batch.ids, batch.reply_mask, 1.0)
            loss, _ = PolicyLoss(Settings())(logps, batch)
            loss.backward()
    gradients = {}
    for parameter_name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[parameter_name] = parameter.grad
    assert gradients
    assert all(".player_1." in parameter_name for parameter_name in gradients)
    model.zero_grad()
    return [*gradients.values()]


@pytest.mark.parametrize("name", ["ippo", "mappo", "vdn", "qmix"])
def test_what_one_player_pays_moves_no_adapter_of_another_but_what_the_team_is_paid_does(
    name: str,
) -> None:
    model = made_model()

    def gradient(penalty: float, score: float) -> list[torch.Tensor]:
        games = step_games(penalty, score)
        observation = made_value_learner(name, model).observe([games], OWN, NAMES)
        assert all(parameter.grad is None for parameter in model.parameters())
        return gradient_of_player_1(model, name, observation, games)

    plain = gradient(penalty=0.0, score=1.0)
    with_penalty = gradient(penalty=-5.0, score=1.0)
    with_more_points = gradient(penalty=0.0, score=2.0)
    assert any(part.abs().max() > 0 for part in plain)
    assert all(map(torch.equal, plain, with_penalty))
    assert not all(map(torch.equal, plain, with_more_points))


@pytest.mark.parametrize("name", ["ippo", "mappo", "vdn", "qmix"])
def test_a_restored_value_learner_says_the_same(name: str) -> None:
    model = made_model()
    games = step_games(penalty=-1.0, score=1.0)
    first = made_value_learner(name, model)
    first.observe([games], OWN, NAMES)
    resumed = made_value_learner(name, model)
    resumed.restore(first.state())
    metrics = first.observe([games], OWN, NAMES).metrics
    assert metrics
    assert resumed.observe([games], OWN, NAMES).metrics == metrics
    for key, value in first.state().items():
        assert torch.equal(resumed.state()[key], value), key


def test_most_estimators_need_nothing_learned() -> None:
    for name in ("grpo", "turn", "rloo", "baseline"):
        assert make_learners(Settings(advantage=name), NAMES, SPECS, MODEL_WIDTH) is None
