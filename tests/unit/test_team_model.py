"""Players on different base models in one trainer: each computes and learns as if it were alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hanabi_grpo.errors import ParityError, RunFolderError
from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.learned.value_learner import widened
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.metrics import episode_metrics
from hanabi_grpo.training.micro_batch import MicroBatch, TokenRow, collate
from hanabi_grpo.training.mismatch import BASE, MismatchCheck
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.start_from import start_adapters
from hanabi_grpo.training.model.team_model import TeamModel
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.thoughts import WithoutThoughts
from hanabi_grpo.types import Turn
from loop_parts import LAPTOP, NAMES, SPEC_HASH, RunOfATest, same_weights, token_text
from made_games import made_episode, made_turn
from small_models import small_model

SIZES: dict[str, dict[str, float]] = {
    "A": {},
    "B": {"hidden_size": 24, "vocab_size": 20, "num_hidden_layers": 2},
}
"""Of the base models; those of B are wider, with more words and layers."""
BASE_OF = {"player_0": "A", "player_1": "B"}
RANKS = dict.fromkeys(NAMES, 4)
ALPHAS = dict.fromkeys(NAMES, 8)


def base(name: str) -> Any:
    """A base model; the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(ord(name))
        return small_model(**SIZES[name])


def _let_adapters_act(model: Any) -> Any:
    """Give every adapter an effect, the same for an adapter in any model."""
    with torch.random.fork_rng():
        for name in NAMES:
            torch.manual_seed(ord(name[-1]))
            for key, value in adapters.trainable_parameters(model, name).items():
                if "lora_B" in key:
                    torch.nn.init.normal_(value, std=0.1)
    return model


def team_model() -> TeamModel:
    """player_0 on A and player_1 on B."""
    models = {name: base(name) for name in SIZES}
    team = adapters.add_team_adapters(models, BASE_OF, rank=RANKS, alpha=ALPHAS, seed=1)
    _let_adapters_act(team)
    return team


def model_of_one(name: str) -> Any:
    """Both players on one base model."""
    model = adapters.add_adapters(base(name), NAMES, rank=RANKS, alpha=ALPHAS, seed=1)
    return _let_adapters_act(model)


def policy_of(model: Any) -> Policy:
    return Policy(model, NAMES, temperature=1.0, has_whole_weights=True)


def batch_of(player: str, policy: Policy, *ids: int) -> MicroBatch:
    """One row of a player, whose last three tokens are a reply."""
    mask = [False] * (len(ids) - 3) + [True] * 3
    row = TokenRow(
        ids=list(ids), mask=mask, logprobs=[-1.0] * len(ids), advantages=[1.0] * len(ids)
    )
    return collate([row], player, 3, 0, torch.device("cpu"), policy.shares_prefixes)


def test_every_policy_of_a_player_is_that_of_its_own_base_model() -> None:
    team = policy_of(team_model())
    for player, name in BASE_OF.items():
        alone = policy_of(model_of_one(name))
        other = NAMES[1 - NAMES.index(player)]
        # Whoever computed before does not matter.
        team.use_adapter_of(other)
        ids = (1, 2, 3, 15, 5, 6)
        batch = batch_of(player, team, *ids)
        own_batch = batch_of(player, alone, *ids)
        assert torch.equal(team.fixed_logprobs(batch), alone.fixed_logprobs(own_batch))
        team.use_adapter_of(other)
        assert torch.equal(team.reference_logprobs(batch), alone.reference_logprobs(own_batch))
        with team.in_float32(), alone.in_float32():
            for adapter in (player, None):
                expected = alone.float32_logprobs(own_batch, adapter)
                team.use_adapter_of(other)
                assert torch.equal(team.float32_logprobs(batch, adapter), expected)
            law = team.float32_law(batch, player, 20.0)
            assert torch.equal(law.mean, alone.float32_law(own_batch, player, 20.0).mean)
    assert team.width == 24
    assert team.on_same_base("player_1") == ("player_1",)


def test_a_loss_moves_the_adapter_of_its_player_alone() -> None:
    model = team_model()
    policy = policy_of(model)
    for player in NAMES:
        model.zero_grad()
        policy.logprobs(batch_of(player, policy, 1, 2, 3, 4, 5, 6)).sum().backward()
        with_gradient = {name for name, value in model.named_parameters() if value.grad is not None}
        assert with_gradient == set(adapters.trainable_parameters(model, player))
    # Token 17 is no word of A.
    assert policy.fixed_logprobs(batch_of("player_1", policy, 1, 2, 17, 18, 19)).isfinite().all()
    with pytest.raises(IndexError):
        policy.fixed_logprobs(batch_of("player_0", policy, 1, 2, 17, 18, 19))


def test_adapters_start_as_they_would_on_their_own_base_model_alone() -> None:
    models = {name: base(name) for name in SIZES}
    team = adapters.add_team_adapters(models, BASE_OF, rank=RANKS, alpha=ALPHAS, seed=3)
    for player, name in BASE_OF.items():
        alone = adapters.add_adapters(base(name), NAMES, rank=RANKS, alpha=ALPHAS, seed=3)
        assert same_weights(
            adapters.adapter_tensors(team, player, torch.float32),
            adapters.adapter_tensors(alone, player, torch.float32),
        )
    trained = [name for name, value in team.named_parameters() if value.requires_grad]
    assert all("lora_" in name for name in trained)


def test_three_players_of_whom_two_share_a_base_model_have_two_parts() -> None:
    names = ("player_0", "player_1", "player_2")
    base_of = {"player_0": "A", "player_1": "B", "player_2": "A"}
    ranks = dict.fromkeys(names, 4)
    models = {name: base(name) for name in SIZES}
    team = adapters.add_team_adapters(models, base_of, rank=ranks, alpha=ranks, seed=0)
    assert [list(part.peft_config) for part in adapters.parts_of(team)] == [
        ["player_0", "player_2"],
        ["player_1"],
    ]
    policy = Policy(team, names, temperature=1.0, has_whole_weights=True)
    assert policy.on_same_base("player_2") == ("player_0", "player_2")
    with pytest.raises(ValueError, match="adapter player_1 is in two parts"):
        team.add(adapters.part_of(team, "player_1"))


def test_another_base_models_adapter_is_no_suspect() -> None:
    policy = policy_of(team_model())
    check = MismatchCheck(
        policy,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        tolerance=1.0,
        dtype="float32",
        is_relative=True,
        report=lambda *_: None,
    )
    assert check._others("player_0") == [BASE]
    alone = MismatchCheck(
        policy_of(model_of_one("A")),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        tolerance=1.0,
        dtype="float32",
        is_relative=True,
        report=lambda *_: None,
    )
    assert alone._others("player_0") == [BASE, "player_1"]


def test_a_gap_is_reported_with_the_base_model_of_the_player(tmp_path: Path) -> None:
    model = team_model()
    for player, name in BASE_OF.items():
        adapters.part_of(model, player).get_base_model().name_or_path = f"models/{name}"
    of_a_test = RunOfATest(tmp_path, policy_model=model, parity_tolerance=1e-9)
    with pytest.raises(ParityError, match="player_0@0 on models/A: trainer and sampler"):
        train(of_a_test.run)


def trained_run(folder: Path, model: Any, **other: Any) -> RunOfATest:
    of_a_test = RunOfATest(folder, policy_model=model, num_steps=3, **other)
    of_a_test.events.save_every = 1
    train(of_a_test.run)
    return of_a_test


@pytest.mark.parametrize("estimator", ["grpo", "ippo", "mappo"])
def test_a_team_learns_and_a_resume_goes_on_bit_by_bit(estimator: str, tmp_path: Path) -> None:
    whole = trained_run(tmp_path / "whole", team_model(), advantage=estimator)
    begun = team_model()
    for player in NAMES:
        before = dict(adapters.trainable_parameters(begun, player))
        assert not same_weights(whole.weights(player), before)
    resumed = RunOfATest(
        tmp_path / "resumed",
        policy_model=team_model(),
        num_steps=3,
        resume_folder=tmp_path / "whole" / "checkpoint-2",
        first_step=2,
        advantage=estimator,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))
    facts = read_manifest(tmp_path / "whole" / "checkpoint-3").facts
    parts = facts["base_checksums"]
    assert parts == adapters.base_checksums(begun, NAMES)
    assert parts["player_0"] == adapters.base_checksum(base("A"))
    assert parts["player_1"] == adapters.base_checksum(base("B"))


def test_a_player_learns_as_it_would_beside_a_partner_of_its_own_base_model(
    tmp_path: Path,
) -> None:
    team = trained_run(tmp_path / "team", team_model())
    for player, name in BASE_OF.items():
        alone = trained_run(tmp_path / name, model_of_one(name))
        expected = adapters.adapter_tensors(alone.model, player, torch.float32)
        assert same_weights(expected, adapters.adapter_tensors(team.model, player, torch.float32))


def test_a_checkpoint_is_refused_once_any_base_model_has_changed(tmp_path: Path) -> None:
    model = team_model()
    of_a_test = RunOfATest(tmp_path, policy_model=model, num_steps=1)
    of_a_test.events.save_every = 1
    with torch.no_grad():
        adapters.part_of(model, "player_1").get_input_embeddings().weight[0, 0] += 1
    with pytest.raises(ParityError, match="the base model's weights changed during training"):
        train(of_a_test.run)


def test_a_player_starts_from_an_adapter_of_its_own_base_model(tmp_path: Path) -> None:
    earlier = adapters.add_adapters(base("B"), NAMES, rank=8, alpha=16, seed=5)
    folder = tmp_path / "checkpoint-7"
    for name in NAMES:
        adapters.save_adapter(_let_adapters_act(earlier), name, folder / name)
    ranks = dict.fromkeys(NAMES, 8)
    models = {name: base(name) for name in SIZES}
    alphas = dict.fromkeys(NAMES, 16)
    team = adapters.add_team_adapters(models, BASE_OF, rank=ranks, alpha=alphas, seed=1)

    def settings(player: str) -> Settings:
        return Settings(lora_rank=8, lora_alpha=16, start_from=(f"{player}={folder}:player_0",))

    start_adapters(team, settings("player_1"), None)
    expected = adapters.adapter_tensors(earlier, "player_0", torch.float32)
    assert same_weights(expected, adapters.adapter_tensors(team, "player_1", torch.float32))
    with pytest.raises(RunFolderError, match="not match those of adapter player_0 of this model"):
        start_adapters(team, settings("player_0"), None)


def test_features_of_a_narrower_model_are_filled_up_part_by_part() -> None:
    features = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert widened(features, 2, 3).tolist() == [[1.0, 2.0, 0.0, 3.0, 4.0, 0.0]]
    assert widened(features, 2, 2) is features


def thought_turn(player: int) -> Turn:
    return made_turn(player, 11, 12, 13)


def test_thoughts_are_read_with_the_words_of_the_players_base_model() -> None:
    words = {11: "a", 12: "<think>", 13: "</think>"}
    without = WithoutThoughts(token_text, {"player_1": words.__getitem__})
    trained = without.in_seats(("player_0", "player_1"))
    assert trained(thought_turn(0)) == [False, False, True]
    assert trained(thought_turn(1)) == [True, False, False]
    swapped = without.in_seats(("player_1", "player_0"))
    assert swapped(thought_turn(0)) == [True, False, False]
    assert WithoutThoughts(token_text).in_seats(NAMES)(thought_turn(1)) == [False, False, True]


def test_a_reply_is_cut_where_it_lacks_the_end_of_its_own_base_model() -> None:
    episode = made_episode(
        made_turn(0, 3, 9), made_turn(1, 4, 9), seats=("player_0@1", "player_1@1")
    )

    def shares(own_seats: tuple[str, ...]) -> Iterator[float]:
        figures = episode_metrics(
            [[episode]],
            {SPEC_HASH: LAPTOP},
            own_seats=own_seats,
            reply_limit=2,
            end_id=9,
            end_ids={"player_1": 8},
        )
        for player in NAMES:
            yield figures[f"{player}/cut_share"]

    assert list(shares(("player_0@1", "player_1@1"))) == [0.0, 1.0]
