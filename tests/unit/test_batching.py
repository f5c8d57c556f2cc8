"""From episodes to micro-batches."""

import torch

from hanabi_grpo.advantages import grpo
from hanabi_grpo.training.batching import plan_batches, sequences_of
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn


def _turn(player: int, length: int, score: float = 0.0) -> Turn:
    return Turn(
        player=player,
        prompt="p",
        reply="Play 0",
        action="Play 0",
        kind=ReplyKind.LEGAL,
        rewards={"score": score},
        prompt_ids=tuple(range(100, 100 + length)),
        reply_ids=(7, 8),
        logprobs=(-0.25, -0.5),
        version=3,
    )


def _episode(*turns: Turn, score: int = 0) -> Episode:
    return Episode(
        preset="laptop",
        spec_hash="x",
        num_players=2,
        suite="train",
        seed=0,
        status=EpisodeStatus.FINISHED,
        score=score,
        score_kept=score,
        turns=turns,
    )


GROUP = [
    _episode(_turn(0, 3, 1.0), _turn(1, 2), _turn(0, 1), score=1),
    _episode(_turn(0, 4), _turn(1, 5)),
    _episode(_turn(0, 2)),
]


def _plan(rank: int = 0, world_size: int = 1, micro_batches: int = 1) -> list[dict]:
    return plan_batches(
        [GROUP],
        num_players=2,
        micro_batches_per_player=micro_batches,
        rank=rank,
        world_size=world_size,
        estimator=grpo,
        pad_id=0,
        device=torch.device("cpu"),
    )


def test_a_trajectory_is_one_sequence_with_the_loss_on_its_replies() -> None:
    first = sequences_of([GROUP], 0, grpo)[0]
    assert first.ids == [100, 101, 102, 7, 8, 100, 7, 8]
    assert first.mask == [False, False, False, True, True, False, True, True]
    assert first.logprobs == [0.0, 0.0, 0.0, -0.25, -0.5, 0.0, -0.25, -0.5]
    assert [value > 0 for value in first.advantages] == first.mask


def test_a_player_without_a_turn_has_no_sequence() -> None:
    assert len(sequences_of([GROUP], 0, grpo)) == 3
    assert len(sequences_of([GROUP], 1, grpo)) == 2


def test_every_micro_batch_belongs_to_one_player_and_is_shifted_by_one() -> None:
    first, second = _plan()
    assert [batch["grpo_batch"].player for batch in (first, second)] == ["player_0", "player_1"]
    batch = first["grpo_batch"]
    assert first["model_inputs"]["input_ids"].shape == (3, 8)
    assert batch.completion_mask.tolist()[0] == [False, False, True, True, False, True, True]
    assert batch.logits_to_keep == 7
    # Player 0 said 2 + 2 + 2 + 2 tokens in all, player 1 four.
    assert batch.num_items_in_batch.item() == 8
    assert second["grpo_batch"].num_items_in_batch.item() == 4


def test_ranks_share_every_sequence_exactly_once_and_agree_on_the_player() -> None:
    plans = [_plan(rank, 2, 2) for rank in range(2)]
    players = [[batch["grpo_batch"].player for batch in plan] for plan in plans]
    assert players == [["player_0", "player_0", "player_1", "player_1"]] * 2
    tokens = sum(int(batch["grpo_batch"].completion_mask.sum()) for plan in plans for batch in plan)
    assert tokens == 12


def test_an_empty_share_becomes_a_row_without_loss() -> None:
    empty = [batch for batch in _plan(1, 2, 2) if not batch["grpo_batch"].completion_mask.any()]
    assert empty
    assert empty[0]["model_inputs"]["input_ids"].shape == (1, 2)
    assert empty[0]["grpo_batch"].num_items_in_batch.item() in (4, 8)
