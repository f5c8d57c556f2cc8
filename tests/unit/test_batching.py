"""From episodes to micro-batches."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.training.batching import build_micro_batches, token_rows, usable_groups
from hanabi_grpo.training.estimators import Estimator, make_estimator
from hanabi_grpo.training.micro_batch import MicroBatch, useful_share
from hanabi_grpo.types import DroppedGame, Episode, Turn, player_names
from made_batches import made_cut
from made_games import made_episode as _episode
from made_games import made_turn

OWN = ("player_0@3", "player_1@3")
grpo = make_estimator("grpo")


def _turn(player: int, length: int, score: float = 0.0, logprob: float = -0.25) -> Turn:
    ids = tuple(range(100, 100 + length))
    return made_turn(
        player, 7, 8, rewards={"score": score}, logprobs=(logprob, -0.5), prompt_ids=ids, version=3
    )


GROUP = [
    _episode(_turn(0, 3, 1.0), _turn(1, 2), _turn(0, 1), score=1),
    _episode(_turn(0, 4), _turn(1, 5)),
    _episode(_turn(0, 2)),
]


def _plan(
    rank: int = 0,
    world_size: int = 1,
    micro_batches: int = 1,
    groups: Sequence[Sequence[Episode]] = (GROUP,),
    estimator: Estimator = grpo,
    tokens: int = 0,
    shared: bool = False,
) -> list[MicroBatch]:
    return build_micro_batches(
        groups,
        trained_seats=OWN,
        players=player_names(len(OWN)),
        estimator=estimator,
        cut=made_cut(
            tokens=tokens,
            micro_batches=micro_batches,
            rank=rank,
            world_size=world_size,
            shared=shared,
        ),
        pad_id=0,
        device=torch.device("cpu"),
    )


def test_a_trajectory_is_one_sequence_with_the_loss_on_its_replies() -> None:
    first = token_rows([GROUP], 0, grpo, OWN)[0]
    assert first.ids == [100, 101, 102, 7, 8, 100, 7, 8]
    assert first.mask == [False, False, False, True, True, False, True, True]
    assert first.logprobs == [0.0, 0.0, 0.0, -0.25, -0.5, 0.0, -0.25, -0.5]
    assert [value > 0 for value in first.advantages] == first.mask
    # A turn's tokens have the turn's advantage: its return-to-go of 1 and 0, less the mean over
    # four turns of 0.25.
    planted = token_rows([GROUP], 0, make_estimator("return_to_go"), OWN)[0]
    assert planted.advantages == [0.0, 0.0, 0.0, 0.75, 0.75, 0.0, -0.25, -0.25]
    # 8 tokens in 3 sequences: those of this one, of 4 tokens, weigh 8 / (3 · 4).
    weighed = token_rows([GROUP], 0, make_estimator("return_to_go"), OWN, unit="sequence")[0]
    assert weighed.advantages == planted.advantages
    weight = 8 / 12
    assert weighed.weights == pytest.approx([0, 0, 0, weight, weight, 0, weight, weight])
    # Player 1 had no turn in the third game.
    assert [len(token_rows([GROUP], player, grpo, OWN)) for player in range(2)] == [3, 2]


def test_every_micro_batch_belongs_to_one_player_and_is_shifted_by_one() -> None:
    first, second = _plan()
    assert [first.player, second.player] == ["player_0", "player_1"]
    assert first.ids.shape == (3, 8)
    assert first.reply_mask.tolist()[0] == [False, False, True, True, False, True, True]
    # Player 0 said 2 + 2 + 2 + 2 tokens in all, player 1 four.
    assert first.num_reply_tokens == 8
    assert second.num_reply_tokens == 4


@pytest.mark.parametrize("tokens", [0, 1, 8, 16, 1000])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_every_sequence_is_in_one_micro_batch_and_ranks_have_equally_many(
    tokens: int, world_size: int, shared: bool
) -> None:
    plans = [_plan(rank, world_size, 2, tokens=tokens, shared=shared) for rank in range(world_size)]
    assert len({tuple(batch.player for batch in plan) for plan in plans}) == 1
    batches = [batch for plan in plans for batch in plan]
    rows = _rows_of(batches)
    assert [row[:2] for row in rows] == [
        ["player_0", 0],
        ["player_0", 1],
        ["player_0", 2],
        ["player_1", 0],
        ["player_1", 1],
    ]
    assert rows == _rows_of(_plan())
    for batch in batches:
        num_rows, width = batch.ids.shape
        is_limited = tokens > 0 and not shared
        assert not is_limited or num_rows == 1 or num_rows * width <= tokens


def _rows_of(batches: Sequence[MicroBatch]) -> list[list]:
    """Return each row with loss: player, game, and what its reply tokens carry."""
    rows = []
    for batch in batches:
        for row, mask in enumerate(batch.reply_mask):
            if mask.any():
                columns = (batch.ids[row, 1:], batch.advantages[row], batch.sampler_logprobs[row])
                carried = [column[mask].tolist() for column in columns]
                rows.append([batch.player, batch.games[row], *carried])
    return sorted(rows)


def test_the_useful_share_counts_what_is_no_padding_and_what_is_shared_once() -> None:
    # Player 0: 8 + 6 + 4 of 3 × 8; player 1: 7 + 4 of 2 × 7.
    assert useful_share(_plan()) == pytest.approx((18 + 11) / (24 + 14))
    assert useful_share(_plan(tokens=1)) == 1.0
    # Player 0: 100 101 102 7 8 100 7 and 100 101 102 103 7 and, shorter, 100 101 7: of 8 + 6 + 4
    # tokens 7 + 2 + 1. Player 1: 100 101 7 and 100 101 102 103 104 7: of 4 + 7 tokens 3 + 4.
    assert useful_share(_plan(shared=True)) == pytest.approx((18 + 11) / (10 + 7))


def _task(seed: int, *episodes: Episode) -> list[Episode]:
    return [replace(episode, seed=seed, game=game) for game, episode in enumerate(episodes)]


def _dropped(seed: int, game: int) -> DroppedGame:
    return DroppedGame(suite="train", seed=seed, game=game, reason=f"RuntimeError: {game}")


def test_a_group_of_fewer_than_two_games_is_left_out_with_its_reason() -> None:
    groups = [_task(1, GROUP[0]), [], _task(3, *GROUP), _task(4, GROUP[0]), _task(5, *GROUP)]
    lost = [_dropped(5, game) for game in (3, 4, 5)]
    kept, sentences = usable_groups(groups, [_dropped(1, 1), _dropped(2, 0), _dropped(2, 1), *lost])
    assert kept == [groups[2], groups[4]]
    assert sentences == [
        "task train 1: 1 of 2 games dropped (game 1: RuntimeError: 1); a group needs 2, so the "
        "task is left out.",
        "task train 2: 2 of 2 games dropped (game 0: RuntimeError: 0; game 1: RuntimeError: 1); a "
        "group needs 2, so the task is left out.",
        "task train 5: 3 of 6 games dropped (game 3: RuntimeError: 3; game 4: RuntimeError: 4; …).",
        "task train 4: 1 game(s) played; a group needs 2, so the task is left out.",
    ]


def test_a_player_has_data_where_it_said_something_in_any_game_on_whatever_rank() -> None:
    groups = [_task(1, _episode(_turn(0, 1)), _episode(_turn(0, 1), _turn(1, 1)))]
    plans = [_plan(rank, 2, 1, groups) for rank in range(2)]
    assert [[batch.has_data for batch in plan] for plan in plans] == [[True, True]] * 2
    assert [[_has_loss(batch) for batch in plan] for plan in plans] == [
        [True, True],
        [True, False],
    ]
    silent = replace(_turn(1, 1), reply_ids=(), logprobs=())
    plan = _plan(groups=[[_episode(_turn(0, 1), silent)] * 2])
    assert [batch.has_data for batch in plan] == [True, False]


def _has_loss(batch: MicroBatch) -> bool:
    return bool(batch.reply_mask.any())


def test_without_any_game_every_rank_gets_rows_without_loss() -> None:
    for rank in range(2):
        batches = _plan(rank, 2, 2, ())
        assert [batch.player for batch in batches] == [
            "player_0",
            "player_0",
            "player_1",
            "player_1",
        ]
        assert not any(_has_loss(batch) for batch in batches)
        assert {tuple(batch.ids.shape) for batch in batches} == {(1, 2)}
        assert {batch.num_reply_tokens for batch in batches} == {0}


def test_advantages_that_overflow_are_an_error_and_never_a_loss() -> None:
    plain = _episode(_turn(0, 1))
    huge = [_episode(_turn(0, 1, 1e308)), _episode(_turn(0, 1, 1e308)), plain]
    big = [_episode(_turn(0, 1, 1e300)), plain]
    assert usable_groups([huge], ()) == ([huge], [])
    for group, estimator in ((huge, grpo), (big, make_estimator("grpo", scale="none"))):
        with pytest.raises(NonFiniteError, match=r"player_0, task train 0, game 0: advantages \["):
            _plan(groups=[group], estimator=estimator)
    assert _has_loss(_plan(groups=[big])[0])


def test_turns_that_are_conversations_of_their_own_are_rows_with_the_same_advantages() -> None:
    alone = []
    for episode in GROUP:
        turns = tuple(replace(turn, fresh=True) for turn in episode.turns)
        alone.append(replace(episode, turns=turns))
    joined = token_rows([GROUP], 0, grpo, OWN)
    apart = token_rows([alone], 0, grpo, OWN)
    assert [len(row.ids) for row in joined] == [3 + 2 + 1 + 2, 4 + 2, 2 + 2]
    assert [len(row.ids) for row in apart] == [3 + 2, 1 + 2, 4 + 2, 2 + 2]
    assert [row.game for row in apart] == [0, 0, 1, 2]
    for name in ("ids", "mask", "logprobs", "advantages"):
        assert [*getattr(apart[0], name), *getattr(apart[1], name)] == getattr(joined[0], name)
