"""HANABI_CRITIC=adapter: a critic with an adapter of its own; and GAE over tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hanabi_grpo.commands.doctor.budget import CRITIC_UPDATES
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import AdvantageOptions, token_rows
from hanabi_grpo.training.estimators import EstimatorContext, LearnedValues, make_estimator
from hanabi_grpo.training.estimators.arithmetic import lambda_advantages, token_advantages
from hanabi_grpo.training.learned.adapter_critic import PASSES, AdapterCritic, AdapterCritics, State
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_states
from hanabi_grpo.types import Episode
from loop_parts import (
    NAMES,
    SPEC_HASH,
    RunOfATest,
    same_weights,
    tiny_policy_model,
    written_games,
)
from made_batches import made_cut
from made_games import made_episode, made_turn

IPPO: dict[str, Any] = {"advantage": "ippo", "critic": "adapter"}


def test_gae_over_tokens_is_the_formula_written_out() -> None:
    # Player 0 says two tokens, then one; it is paid 1 with the first turn, 2 with the other's turn
    # behind it, and 4 at the end.
    turns = [
        replace(made_turn(0, 5, 6), rewards=({"a": 1.0}, {}), step=0),
        replace(made_turn(1, 7), rewards=({"a": 2.0}, {"a": 9.0}), step=1),
        replace(made_turn(0, 8), rewards=({"a": 4.0}, {}), step=2),
    ]
    episode = made_episode(*turns)
    values = {0: [0.5, 1.0], 2: [3.0]}
    decay, gamma = 0.5, 0.9
    last = 4 - 3.0
    second = (1 + 2) + gamma * 3.0 - 1.0 + gamma * decay * last
    first = gamma * 1.0 - 0.5 + gamma * decay * second
    found = token_advantages(episode, 0, values, decay, gamma)
    assert found[0] == pytest.approx([first, second])
    assert found[2] == pytest.approx([last])
    # Without fading and discount the values in between cancel.
    whole = token_advantages(episode, 0, values, 1.0)
    assert whole[0] == pytest.approx([7 - 0.5, 7 - 1.0])
    # Replies of one token: those of turns, along the player's own chain.
    one_token = made_episode(replace(turns[0], reply_ids=(5,), logprobs=(0.0,)), *turns[1:])
    chain = {0: 0.5, 2: 3.0}
    of_turns = lambda_advantages(one_token, 0, chain, decay, gamma)
    of_tokens = token_advantages(one_token, 0, {0: [0.5], 2: [3.0]}, decay, gamma)
    assert {turn: [value] for turn, value in of_turns.items()} == of_tokens


class _Known(LearnedValues):
    """Values before each token: its number in the reply."""

    def token_chain(self, episode: Episode, player: int) -> dict[int, list[float]]:
        chain = {}
        for number, turn in enumerate(episode.turns):
            if turn.player == player and turn.reply_ids:
                chain[number] = [float(token) for token in range(len(turn.reply_ids))]
        return chain


def test_each_token_carries_its_own_advantage_through_normalisation_whitening_and_clip() -> None:
    games = written_games(0)
    # A turn without a reply, in a conversation that is full, has no token.
    full = made_turn(0, prompt_ids=())
    games[0][0] = replace(games[0][0], turns=(*games[0][0].turns, full))
    estimator = make_estimator("ippo", gae_lambda=1.0, scale="none")
    rows = token_rows(
        games,
        0,
        estimator,
        tuple(f"{name}@0" for name in NAMES),
        context=EstimatorContext(values=_Known()),
        options=AdvantageOptions(of_tokens=True),
    )
    # A - V: what the game pays, 0 or 1, less 0, 1 at the two tokens, less the mean of all tokens.
    assert [row.advantages[-2:] for row in rows] == [
        pytest.approx([pay, pay - 1.0]) for pay in (0.0, 1.0, 0.0, 1.0)
    ]
    assert all(row.advantages[:-2] == [0.0] * (len(row.ids) - 2) for row in rows)
    clipped = token_rows(
        games,
        0,
        estimator,
        tuple(f"{name}@0" for name in NAMES),
        context=EstimatorContext(values=_Known()),
        options=AdvantageOptions(of_tokens=True, whiten=True, clip=0.5),
    )
    assert [row.advantages[-2:] for row in clipped] == [
        pytest.approx(values) for values in ([0.0, -0.5], [0.5, 0.0], [0.0, -0.5], [0.5, 0.0])
    ]


def test_a_critic_computes_the_base_model_and_its_own_matrices_and_moves_nobody_else() -> None:
    model = tiny_policy_model(Settings(lora_rank=8))
    torch.manual_seed(1)
    critic = AdapterCritic(model, rank=4, alpha=8)
    ids = torch.tensor([[1, 2, 3, 4]])
    mask = torch.tensor([[False, True, True]])
    with torch.no_grad(), adapters.base_only(model):
        base = reply_states(model, model, ids, mask)
    with critic.in_use(model):
        # Nothing is added before it has learned.
        torch.testing.assert_close(reply_states(model, model, ids, mask), base)
        for up in critic.up:
            torch.nn.init.normal_(up, std=0.5)
        changed = reply_states(model, model, ids, mask)
        assert not torch.allclose(changed, base)
        changed.sum().backward()
    assert all(down.grad is not None and down.grad.abs().sum() > 0 for down in critic.down)
    assert all(value.grad is None for value in model.parameters())
    with torch.no_grad(), adapters.base_only(model):
        torch.testing.assert_close(reply_states(model, model, ids, mask), base)
    # The first layer by hand.
    layer = adapters.lora_layers(model)[0]
    x = torch.randn(3, layer.get_base_layer().in_features)
    with critic.in_use(model):
        expected = layer.get_base_layer()(x) + 2.0 * x @ critic.down[0].T @ critic.up[0].T
        torch.testing.assert_close(layer(x), expected)


def critics_of(made: RunOfATest) -> AdapterCritics:
    critics = made.run._value_learner
    assert isinstance(critics, AdapterCritics)
    return critics


@pytest.mark.parametrize("unit", ["turn", "token"])
def test_a_critic_learns_what_prompts_are_worth(tmp_path: Path, unit: str) -> None:
    made = RunOfATest(tmp_path, gae_unit=unit, gae_lambda=1.0, **IPPO)
    # What is paid depends on whether two tokens of the prompt are of one kind: no sum of them says.
    groups = []
    for first in range(4):
        for second in range(4):
            paid = {"score": 3.0 if first // 2 == second // 2 else 0.0}
            turn = made_turn(0, 9, 8, prompt_ids=(10 + first, 10 + second), rewards=paid)
            groups.append([made_episode(turn, spec_hash=SPEC_HASH, seats=("player_0@0", "base"))])
    critics = critics_of(made)
    seats = tuple(f"{name}@0" for name in NAMES)
    before = {name: made.weights(name) for name in NAMES}
    explained = []
    for _ in range(45):
        observation = critics.observe(groups, seats, NAMES)
        explained.append(observation.metrics["player_0/value_explained"])
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert explained[-1] > 0.9
    assert "player_1/value_explained" not in observation.metrics
    # Its adapter has learned, and not the head alone.
    assert all(up.abs().max() > 0 for up in critics._learners["player_0"].head.up)
    game = groups[0][0]
    if unit == "token":
        [values] = [*(observation.values.token_chain(game, 0) or {}).values()]
        assert values == pytest.approx([3.0, 3.0], abs=1.0)
    else:
        assert observation.values.chain(game, 0)[0] == pytest.approx(3.0, abs=1.0)
    for name in NAMES:
        assert same_weights(before[name], made.weights(name))


@pytest.mark.parametrize("unit", ["turn", "token"])
def test_a_run_with_critics_of_their_own_keeps_players_apart_and_resumes_bit_by_bit(
    tmp_path: Path, unit: str
) -> None:
    values = {**IPPO, "gae_unit": unit}
    whole = RunOfATest(tmp_path / "whole", **values)
    names = {name for name, _ in whole.model.named_parameters()}
    whole.events.save_every = 1
    train(whole.run)
    assert {name for name, _ in whole.model.named_parameters()} == names
    assert "player_0/value_explained" in whole.events.rows[0]
    resumed = RunOfATest(
        tmp_path / "resumed",
        resume_folder=tmp_path / "whole" / "checkpoint-2",
        first_step=2,
        **values,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))
    assert same_weights(critics_of(whole).state(), critics_of(resumed).state())
    # What player 1 is paid alone moves neither player 0 nor its critic.
    other = RunOfATest(tmp_path / "other", games=_paid_otherwise, **values)
    train(other.run)
    assert same_weights(whole.weights("player_0"), other.weights("player_0"))
    assert not same_weights(whole.weights("player_1"), other.weights("player_1"))


def _paid_otherwise(step: int) -> list[list[Episode]]:
    groups = []
    for group in written_games(step):
        episodes = []
        for number, episode in enumerate(group):
            first, second = episode.turns
            own = {**second.rewards[1], "private": float(number + 1) ** 2}
            second = replace(second, rewards=(second.rewards[0], own))
            episodes.append(replace(episode, turns=(first, second)))
        groups.append(episodes)
    return groups


def test_shares_of_processes_hold_all_states_once_and_equally_many_micro_batches(
    tmp_path: Path,
) -> None:
    seats = tuple(f"{name}@0" for name in NAMES)
    states: list[State] = []
    counts = []
    for rank in (0, 1):
        made = RunOfATest(tmp_path / str(rank), gae_unit="token", **IPPO)
        critics = critics_of(made)
        critics._cut = made_cut(tokens=8, rank=rank, world_size=2)
        shares = critics._shares(written_games(0), seats, NAMES)["player_1"]
        counts.append(len(shares))
        for share in shares:
            states.extend(share.states)
    assert counts[0] == counts[1] > 1
    # Four games, in each of which player 1 says three tokens in the second turn.
    expected = [State(game, 1, token) for game in range(4) for token in range(3)]
    assert sorted(states) == expected


def test_ranks_and_the_default_rate_are_those_of_adapters(tmp_path: Path) -> None:
    made = RunOfATest(tmp_path, **{**IPPO, "lora_rank": "player_0=8,player_1=16"})
    learners = critics_of(made)._learners
    assert learners["player_0"].head.down[0].shape[0] == 8
    assert learners["player_1"].head.down[0].shape[0] == 16
    assert Settings(critic="adapter").critic_learning_rate == Settings().learning_rate
    on_gpu = Settings(critic="adapter", device="gpu")
    assert on_gpu.critic_learning_rate == Settings(device="gpu").learning_rate
    assert Settings().critic_learning_rate == 3e-3
    assert CRITIC_UPDATES == PASSES, "the doctor's estimate of seconds"
