"""HANABI_MINIBATCHES: a step's games in parts, with an update for each."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import build_micro_batches
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.minibatches import parts_of_games, weights_by_part
from hanabi_grpo.training.mismatch import TokenGaps
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.updates import game_log_ratios, game_weights, player_order, sum_log_ratios
from hanabi_grpo.types import Episode
from loop_parts import (
    BASE_SETTINGS,
    NAMES,
    RunOfATest,
    same_weights,
    tiny_policy_model,
    written_games,
)
from made_batches import made_cut

Groups = list[list[Episode]]


def test_groups_stay_whole_and_are_dealt_anew_in_each_step() -> None:
    groups: Groups = [group * (number % 3) for number, group in enumerate(written_games(0) * 4)]
    sizes = [len(group) for group in groups]
    assert sizes == [0, 2, 4, 0, 2, 4, 0, 2]
    parts = parts_of_games(groups, 2, seed=7, step=3)
    assert len(parts) == sum(sizes)
    parts_of_groups = []
    start = 0
    for size in sizes:
        assert len(set(parts[start : start + size])) == min(size, 1)
        parts_of_groups.extend(parts[start : start + 1 if size else start])
        start += size
    # Five groups with games: three and two.
    assert sorted(Counter(parts_of_groups).values()) == [2, 3]
    assert parts == parts_of_games(groups, 2, seed=7, step=3)
    assert len({tuple(parts_of_games(groups, 2, seed=7, step=step)) for step in range(9)}) > 1
    assert parts_of_games(groups, 1, seed=7, step=3) == [0] * sum(sizes)
    # Fewer groups than parts.
    two_groups = parts_of_games(groups[:3], 4, seed=7, step=3)
    assert sorted(Counter(two_groups).items()) in ([(0, 2), (1, 4)], [(0, 4), (1, 2)])


def test_what_weighs_the_same_in_the_loss_does_so_within_a_part() -> None:
    lengths = [[1, 3], [2], [4]]
    weights = weights_by_part(lengths, [0, 1, 0], "turn")
    # Part 0: eight tokens in three turns. Part 1: one turn.
    assert weights[0] == pytest.approx([8 / 3, 8 / 9])
    assert weights[1] == [1.0]
    assert weights[2] == pytest.approx([8 / 12])


def batches_of(policy: Policy, step: int, groups: Groups) -> list[MicroBatch]:
    return build_micro_batches(
        groups,
        trained_seats=tuple(f"{name}@{step}" for name in NAMES),
        players=NAMES,
        estimator=make_estimator("grpo"),
        cut=made_cut(tokens=2048, shared=policy.shares_prefixes),
        pad_id=0,
        device=torch.device("cpu"),
    )


def trained_by_hand(values: dict[str, Any], num_steps: int) -> dict[str, torch.Tensor]:
    """Return the weights of a loop that is written out, whose parts are batches of their own."""
    settings = Settings(**{**BASE_SETTINGS, **values})
    model = tiny_policy_model(settings)
    policy = Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    loss_of = PolicyLoss(settings)
    parameters = {
        player: [value for key, value in model.named_parameters() if f".{player}." in key]
        for player in NAMES
    }
    optimizers = {
        player: torch.optim.AdamW(parameters[player], lr=0.05, weight_decay=0.0) for player in NAMES
    }
    for step in range(num_steps):
        for optimizer in optimizers.values():
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / num_steps)
        groups = written_games(step)
        parts = parts_of_games(groups, 2, seed=settings.seed, step=step)
        batches = []
        for part in (0, 1):
            of_part = [group for number, group in enumerate(groups) if parts[2 * number] == part]
            for batch in batches_of(policy, step, of_part):
                # Numbers of games are those of the whole step.
                first = parts.index(part)
                batch.games = tuple(first + game for game in batch.games)
                batch.old_logprobs = policy.fixed_logprobs(batch)
                batches.append(batch)
        log_ratios: list[dict[int, float]] = []
        is_sequential = settings.update == "sequential"
        for player in player_order(settings, step) if is_sequential else NAMES:
            own = [batch for batch in batches if batch.player == player]
            for batch in own:
                if is_sequential and log_ratios:
                    batch.game_weights = game_weights(log_ratios, batch.games, 2.0)
            for _ in range(settings.updates_per_step):
                for batch in own:
                    optimizers[player].zero_grad()
                    loss, _ = loss_of(policy.logprobs(batch), batch)
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(parameters[player], settings.max_grad_norm)
                    optimizers[player].step()
            ratios = []
            for batch in own:
                assert batch.old_logprobs is not None
                after = policy.fixed_logprobs(batch)
                ratios.append(
                    game_log_ratios(after, batch.old_logprobs, batch.reply_mask, batch.games)
                )
            log_ratios.append(sum_log_ratios(ratios))
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"updates_per_step": 2},
        {"update": "sequential"},
        {"update": "sequential", "updates_per_step": 2},
    ],
    ids=str,
)
def test_parts_are_those_of_a_loop_that_is_written_out(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    values = {"minibatches": 2, **values}
    made = RunOfATest(tmp_path / "parts", **values)
    train(made.run)
    expected = trained_by_hand(values, 3)
    for player in NAMES:
        for name, value in made.weights(player).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=5e-5)
    passes = values.get("updates_per_step", 1)
    assert {int(state["step"]) for state in made.optimizer.state.values()} == {3 * 2 * passes}
    # A step is one place in the schedule.
    assert [group["updates"] for group in made.optimizer.param_groups] == [3, 3]
    whole = RunOfATest(tmp_path / "whole", **{**values, "minibatches": 1})
    train(whole.run)
    assert not same_weights(whole.weights("player_0"), made.weights("player_0"))


def test_the_mismatch_check_looks_at_every_part_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunOfATest(tmp_path, num_steps=1, minibatches=2, updates_per_step=2)
    before = {player: made.weights(player) for player in NAMES}
    check_gap = made.run._mismatch.check_gap
    checked: list[tuple[str, int]] = []

    def check(batch: MicroBatch, logprobs: torch.Tensor, version: int) -> TokenGaps:
        for player in NAMES:
            assert same_weights(before[player], made.weights(player))
        checked.append((batch.player, batch.part))
        return check_gap(batch, logprobs, version)

    monkeypatch.setattr(made.run._mismatch, "check_gap", check)
    train(made.run)
    assert sorted(checked) == [(player, part) for player in NAMES for part in (0, 1)]
    assert not same_weights(before["player_0"], made.weights("player_0"))
    assert "time/recall" in made.events.rows[0]


def test_a_resumed_run_draws_the_same_parts(tmp_path: Path) -> None:
    values = {"minibatches": 2, "update": "sequential", "advantage": "baseline"}
    whole = RunOfATest(tmp_path / "whole", **values)
    whole.events.save_every = 1
    train(whole.run)
    resumed = RunOfATest(
        tmp_path / "resumed",
        resume_folder=tmp_path / "whole" / "checkpoint-1",
        first_step=1,
        **values,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))


def test_a_player_without_a_turn_in_a_part_does_not_move_in_its_update(tmp_path: Path) -> None:
    def games(step: int) -> Groups:
        """Player 1's seat is a partner's in the games of the second task."""
        first, second = written_games(step)
        return [first, [replace(game, seats=(game.seats[0], "base")) for game in second]]

    made = RunOfATest(tmp_path, num_steps=2, minibatches=2, games=games)
    train(made.run)
    updates = {}
    for group in made.optimizer.param_groups:
        counts = {int(made.optimizer.state[value]["step"]) for value in group["params"]}
        updates[group["player"]] = counts
    assert updates == {"player_0": {4}, "player_1": {2}}
    assert made.incidents == []


def test_every_process_has_the_same_parts_and_as_many_micro_batches_of_each() -> None:
    groups = written_games(0) * 2
    parts = [1, 1, 0, 0, 0, 0, 0, 0]
    shares = []
    for rank in (0, 1):
        batches = build_micro_batches(
            groups,
            trained_seats=tuple(f"{name}@0" for name in NAMES),
            players=NAMES,
            estimator=make_estimator("grpo"),
            cut=made_cut(micro_batches=4, rank=rank, world_size=2),
            pad_id=0,
            device=torch.device("cpu"),
            parts=parts,
        )
        shares.append([(batch.player, batch.part, batch.num_reply_tokens) for batch in batches])
    assert shares[0] == shares[1]
    # A quarter of the games in one of four micro-batches, the rest in three.
    assert Counter(shares[0]) == {
        ("player_0", 0, 12): 3,
        ("player_0", 1, 4): 1,
        ("player_1", 0, 18): 3,
        ("player_1", 1, 6): 1,
    }
