"""The objective as its settings choose it: normalisation, discount, whitening, clips, groups of 1.

Values are worked out by hand, or by a plain formula beside the code's.
"""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.training.advantages import clip, step_advantages, whiten
from hanabi_grpo.training.batching import AdvantageOptions, token_rows
from hanabi_grpo.training.estimators import (
    DISCOUNTED,
    ESTIMATORS,
    EstimatorContext,
    LearnedValues,
    Method,
    Over,
    make_estimator,
)
from hanabi_grpo.training.estimators.arithmetic import EPSILON, lambda_advantages
from hanabi_grpo.training.estimators.returns import discounted_return, returns_to_go
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.rewards import clip_returns, turn_rewards, whiten_rewards
from hanabi_grpo.types import Episode, Turn
from loop_parts import RunOfATest, same_weights, written_games
from made_games import made_episode, made_turn


def _turn(player: int, *ids: int, **rewards: float) -> Turn:
    return made_turn(player, *ids, rewards=rewards)


GROUP = [
    made_episode(_turn(0, score=1.0), _turn(1, score=1.0), _turn(0), score=2),
    made_episode(_turn(0, illegal=-0.5), _turn(1), score=0),
    made_episode(_turn(0, score=1.0), score=1),
]
"""Returns of player 0: 2, −0.5, 1, over 2, 1 and 1 turns."""
OTHER = [
    made_episode(_turn(0, score=1.0), _turn(1, score=2.0), score=3, seed=1),
    made_episode(_turn(0), score=0, seed=1),
]
"""Returns of player 0: 3, 0."""
SAME_TASK = [made_episode(_turn(0, score=7.0), score=7)]
"""Another group of the task of GROUP, as partners in other seats make one."""
HARD = [made_episode(_turn(0, score=25.0), score=25, spec_hash="y", seed=2)]
STEP = [GROUP, OTHER, SAME_TASK, HARD]


def normalized(
    name: str, method: Method, over: Over, step: list[list[Episode]] | None = None
) -> list[list[list[float]]]:
    estimator = make_estimator(name, normalize=method, normalize_over=over)
    return step_advantages(step or STEP, 0, estimator)


OWN_CHOICES = [
    ("grpo", "std", Method.MEAN_STD, Over.GROUP),
    ("grpo", "none", Method.MEAN, Over.GROUP),
    ("vdn", "none", Method.MEAN, Over.GROUP),
    ("reinforce_pp", "std", Method.MEAN_STD, Over.ENVIRONMENT),
    ("return_to_go", "none", Method.MEAN, Over.ENVIRONMENT),
    ("ippo", "std", Method.MEAN_STD, Over.ENVIRONMENT),
    ("ippo", "none", Method.MEAN, Over.ENVIRONMENT),
]


@pytest.mark.parametrize(("name", "scale", "method", "over"), OWN_CHOICES)
def test_what_a_paper_does_is_one_of_the_choices(
    name: str, scale: Any, method: Method, over: Over
) -> None:
    as_paper = step_advantages(STEP, 0, make_estimator(name, scale=scale))
    assert normalized(name, method, over) == as_paper


def test_a_method_is_applied_to_the_credits_of_each_pool() -> None:
    # One group: returns 2, −0.5, 1 count once a game: mean 0.8333, deviation 1.2583.
    mean = 2.5 / 3
    deviation = stdev([2, -0.5, 1]) + EPSILON
    [found, *_] = normalized("rloo", Method.NONE, Over.GROUP)
    assert found == [[2.0, 2.0], [-0.5], [1.0]]
    [found, *_] = normalized("rloo", Method.MEAN, Over.GROUP)
    assert found[0] == pytest.approx([2 - mean] * 2)
    [found, *_] = normalized("rloo", Method.STD, Over.GROUP)
    assert found[0] == pytest.approx([2 / deviation] * 2)
    [found, *_] = normalized("rloo", Method.MEAN_STD, Over.GROUP)
    assert found[1] == pytest.approx([(-0.5 - mean) / deviation])


@pytest.mark.parametrize(
    ("over", "compared"),
    [
        (Over.GROUP, [2, -0.5, 1]),
        (Over.TASK, [2, -0.5, 1, 7]),
        (Over.ENVIRONMENT, [2, -0.5, 1, 7, 3, 0]),
        (Over.STEP, [2, -0.5, 1, 7, 3, 0, 25]),
    ],
)
def test_a_pool_holds_the_group_the_task_the_board_or_the_step(
    over: Over, compared: list[float]
) -> None:
    [found, *_] = normalized("grpo", Method.MEAN, over)
    assert found[0] == pytest.approx([2 - fmean(compared)] * 2)


def test_turns_count_where_turns_are_credited_and_games_where_games_are() -> None:
    # From player 0's turns on come 2 and 0, −0.5, and 1.
    [found, *_] = normalized("return_to_go", Method.MEAN, Over.GROUP)
    assert found[0] == pytest.approx([2 - 2.5 / 4, -2.5 / 4])
    # REINFORCE++ counts each turn with the return of its game: 2, 2, −0.5, 1.
    [found, *_] = normalized("reinforce_pp", Method.MEAN, Over.GROUP)
    assert found[0] == pytest.approx([2 - 4.5 / 4] * 2)


def test_a_baseline_or_a_history_stays_part_of_the_credit() -> None:
    context = EstimatorContext(state={"player_0 x": 0.25})
    estimator = make_estimator("baseline", normalize=Method.NONE)
    assert step_advantages([GROUP], 0, estimator, context) == [[[1.75, 1.75], [-0.75], [0.75]]]
    estimator = make_estimator("state_baseline", normalize=Method.MEAN, normalize_over=Over.STEP)
    plain = step_advantages([GROUP], 0, make_estimator("state_baseline"))
    values = [value for game in plain[0] for value in game]
    [found] = step_advantages([GROUP], 0, estimator)
    assert found[0] == pytest.approx([value - fmean(values) for value in plain[0][0]])


def test_a_pool_alone_keeps_the_papers_method() -> None:
    for name, estimator in ESTIMATORS.items():
        chosen = make_estimator(name, normalize_over=Over.STEP)
        method = Method.MEAN_STD if estimator.divides_by_deviation else Method.MEAN
        assert chosen.method is method, name


def _in_steps(*turns: Turn) -> Episode:
    """Return a game in which one player moves after the other."""
    return made_episode(*[replace(turn, step=number) for number, turn in enumerate(turns)])


DELAYED = _in_steps(
    _turn(1, score=8.0), _turn(0), _turn(1, score=4.0), _turn(0, score=2.0), _turn(1, score=1.0)
)
"""Player 0 gets 8 before its first turn, 0 + 4 from it on, and 2 + 1 from its second."""


def test_a_discount_is_over_the_players_own_turns() -> None:
    assert returns_to_go([DELAYED], 0, 0.5) == [[4 + 0.5 * 3, 3.0]]
    assert discounted_return(DELAYED, 0, 0.5) == 8 + 4 + 0.5 * 3
    # Player 1: 8 + 0, 4 + 2, 1.
    assert returns_to_go([DELAYED], 1, 0.5) == [[8 + 0.5 * 6 + 0.25, 6 + 0.5, 1.0]]
    assert discounted_return(DELAYED, 0) == DELAYED.reward(0)


def test_gae_discounts_values_and_the_decay() -> None:
    chain = {1: 3.0, 3: 2.0}
    found = lambda_advantages(DELAYED, 0, chain, 0.8, 0.5)
    # δ_1 = 2 + 1 − 2; δ_0 = 4 + .5 · 2 − 3, and .5 · .8 of δ_1.
    assert found == {3: pytest.approx(1.0), 1: pytest.approx(2.0 + 0.4 * 1.0)}


class _HalfKnown(LearnedValues):
    def share(self, episode: Episode, player: int) -> float:
        return 2 * episode.reward(player)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_discount_changes_those_that_say_they_read_it(name: str) -> None:
    games = [DELAYED, _in_steps(_turn(0, score=1.0), _turn(0, score=2.0))]
    context = EstimatorContext(values=_HalfKnown())
    plain = make_estimator(name, scale="none").advantages(games, 0, context)
    discounted = make_estimator(name, scale="none", gamma=0.5).advantages(games, 0, context)
    assert (discounted != plain) == (name in DISCOUNTED)
    if name not in DISCOUNTED:
        with pytest.raises(SettingsError, match=f"HANABI_GAMMA=0.5 with HANABI_ADVANTAGE={name}"):
            batch_plan(Settings(advantage=name, gamma=0.5))
    else:
        batch_plan(Settings(advantage=name, gamma=0.5))


def test_whitened_advantages_have_mean_0_and_deviation_1_over_tokens() -> None:
    values = [[1.0, 4.0], [], [-2.0]]
    lengths = [[3, 1], [], [2]]
    tokens = [1.0, 1.0, 1.0, 4.0, -2.0, -2.0]
    found = whiten(values, lengths)
    scale = stdev(tokens) + EPSILON
    assert found[0] == pytest.approx([(1 - fmean(tokens)) / scale, (4 - fmean(tokens)) / scale])
    assert found[1] == [] and found[2] == pytest.approx([(-2 - fmean(tokens)) / scale])
    # One token has no deviation, and alike ones stay finite.
    assert whiten([[5.0]], [[1]]) == [[5.0]]
    assert whiten([[5.0, 5.0]], [[2, 3]]) == [[0.0, 0.0]]


def test_advantages_are_whitened_then_clipped_and_reach_the_tokens() -> None:
    games = [
        made_episode(_turn(0, 3, 4, score=2.0), game=0),
        made_episode(_turn(0, 5, score=-1.0), game=1),
        made_episode(_turn(0, 6, score=8.0), game=2),
    ]
    grpo = make_estimator("grpo", scale="none")
    tokens = [2 - 3.0, 2 - 3.0, -4.0, 5.0]
    scale = stdev(tokens) + EPSILON
    options = AdvantageOptions(whiten=True, clip=1.0)
    rows = token_rows([games], 0, grpo, ("", ""), options=options)
    wanted = [(token - fmean(tokens)) / scale for token in tokens]
    found = [value for row in rows for value in row.advantages]
    assert found == pytest.approx([min(max(value, -1.0), 1.0) for value in wanted])
    assert found[-1] == 1.0 and clip([[3.0, -9.0, 1.0]], 2.0) == [[2.0, -2.0, 1.0]]


def test_a_game_that_pays_more_than_the_clip_is_paid_in_proportion() -> None:
    big = made_episode(_turn(0, score=6.0), _turn(1, score=3.0), _turn(0, illegal=-1.0), score=9)
    small = made_episode(_turn(0, score=2.0), score=2)
    [[clipped, same]] = clip_returns([[big, small]], 0, 4.0)
    assert clipped.reward(0) == pytest.approx(4.0)
    assert turn_rewards(clipped, 0) == pytest.approx([9 * 0.5, -1 * 0.5])
    # Nothing of the other player changes, nor a game within the limit.
    assert clipped.reward(1) == big.reward(1) and same is small
    [[low]] = clip_returns([[made_episode(_turn(0, score=-8.0))]], 0, 4.0)
    assert low.reward(0) == pytest.approx(-4.0)


def test_whitened_rewards_have_mean_0_and_deviation_1_over_tokens() -> None:
    games = [
        made_episode(_turn(1, 9, score=1.0), _turn(0, 3, 4, score=2.0), _turn(0, 5)),
        made_episode(_turn(0, 6, score=-1.0), _turn(1, 7, score=0.5)),
    ]
    # From its turns on player 0 gets 1 + 2, 0 and −1 + .5; the first has two tokens.
    assert turn_rewards(games[0], 0) == [3.0, 0.0] and turn_rewards(games[1], 0) == [-0.5]
    tokens = [3.0, 3.0, 0.0, -0.5]
    scale = stdev(tokens) + EPSILON
    [found] = whiten_rewards([games], 0, ("", ""))
    wanted = [[(3 - fmean(tokens)) / scale, -fmean(tokens) / scale]]
    wanted.append([(-0.5 - fmean(tokens)) / scale])
    assert [turn_rewards(game, 0) for game in found] == [pytest.approx(game) for game in wanted]
    assert [game.reward(1) for game in found] == [game.reward(1) for game in games]


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("limit", [None, 1.3, 3.0])
def test_the_dual_clip_is_that_of_its_formula(advantage: float, limit: float | None) -> None:
    ratios = [0.5, 1.1, 1.25, 2.0, 3.5, 9.0]
    batch = MicroBatch(
        player="player_0",
        ids=torch.zeros(1, len(ratios) + 1, dtype=torch.long),
        lengths=torch.tensor([len(ratios) + 1]),
        reply_mask=torch.ones(1, len(ratios), dtype=torch.bool),
        sampler_logprobs=torch.zeros(1, len(ratios)),
        advantages=torch.full((1, len(ratios)), advantage),
        num_reply_tokens=len(ratios),
        games=(0,),
        old_logprobs=torch.zeros(1, len(ratios)),
    )
    logprobs = torch.tensor([[math.log(ratio) for ratio in ratios]], requires_grad=True)
    loss, measured = PolicyLoss(Settings(dual_clip=limit))(logprobs, batch)
    terms = []
    for ratio in ratios:
        term = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        if limit is not None and advantage < 0:
            term = max(term, limit * advantage)
        terms.append(-term)
    assert loss.item() == pytest.approx(fmean(terms), rel=1e-6)
    loss.backward()
    assert logprobs.grad is not None
    moves = (logprobs.grad[0] != 0).tolist()
    if advantage > 0:
        assert moves == [True, True, False, False, False, False]
    else:
        # Below .8 PPO's clip stops the token, above c the dual clip.
        assert moves == [ratio > 0.8 and ratio < (limit or math.inf) for ratio in ratios]
    if limit is not None:
        beyond = sum(ratio > limit for ratio in ratios) if advantage < 0 else 0
        assert measured["dual"].item() == pytest.approx(beyond / len(ratios))


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"advantage_scale": "std", "normalize": "mean"},
        "HANABI_ADVANTAGE_SCALE=std with HANABI_NORMALIZE=mean: .*unset HANABI_ADVANTAGE_SCALE",
    ),
    (
        {"num_generations": 1},
        "NUM_GENERATIONS=1 with HANABI_ADVANTAGE=turn: .*use one of baseline, reinforce_pp, ",
    ),
    (
        {"num_generations": 1, "advantage": "reinforce_pp", "normalize_over": "task"},
        "NUM_GENERATIONS=1 with HANABI_ADVANTAGE=reinforce_pp HANABI_NORMALIZE_OVER=task",
    ),
    (
        {"num_generations": 1, "advantage": "state_baseline", "normalize_over": "step"},
        "NUM_GENERATIONS=1 with HANABI_ADVANTAGE=state_baseline",
    ),
    (
        {"resample_flat": 1, "normalize_over": "step"},
        "HANABI_RESAMPLE_FLAT=1 with HANABI_NORMALIZE=unset HANABI_NORMALIZE_OVER=step",
    ),
    (
        {"reward_clip": 2.0, "advantage": "qmix"},
        "HANABI_REWARD_CLIP=2 with HANABI_ADVANTAGE=qmix",
    ),
    (
        {"whiten_rewards": True, "advantage": "ippo"},
        "HANABI_WHITEN_REWARDS=1 with HANABI_ADVANTAGE=ippo: .*HANABI_WHITEN_ADVANTAGES=1",
    ),
    (
        {"critic": "adapter", "advantage": "mappo"},
        "HANABI_CRITIC=adapter with HANABI_ADVANTAGE=mappo: .*HANABI_ADVANTAGE=ippo",
    ),
    (
        {"gae_unit": "token", "advantage": "ippo"},
        "HANABI_GAE_UNIT=token with HANABI_CRITIC=head: .*set HANABI_CRITIC=adapter",
    ),
    (
        {"critic": "adapter", "advantage": "ippo", "deepspeed": "zero3"},
        "HANABI_CRITIC=adapter with DEEPSPEED=zero3: .*zero2, or HANABI_CRITIC=head",
    ),
    (
        {"critic": "adapter", "advantage": "ippo", "dtype": "float16"},
        "HANABI_CRITIC=adapter with HANABI_DTYPE=float16: .*use bfloat16, float32",
    ),
    (
        {"gae_lambda": 0.9},
        "HANABI_GAE_LAMBDA=0.9 with HANABI_ADVANTAGE=turn: .*no effect.*one of ippo, mappo",
    ),
    (
        {"critic_learning_rate": 0.01, "advantage": "rloo"},
        "HANABI_CRITIC_LEARNING_RATE=0.01 with HANABI_ADVANTAGE=rloo: .*ippo, mappo, vdn, qmix",
    ),
    (
        {"sampler_correction_limit": 3.0},
        "HANABI_SAMPLER_CORRECTION_LIMIT=3 with HANABI_SAMPLER_CORRECTION=none: .*no effect",
    ),
    (
        {"belief_weight": "player_0=0.1,player_1=0.2", "freeze": "player_1"},
        "HANABI_FREEZE=player_1: player_1 does not learn, so its weight would have no effect",
    ),
    (
        {"minibatches": 9, "tasks_per_step": 8},
        "HANABI_MINIBATCHES=9 with HANABI_TASKS_PER_STEP=8: .*set 1 to 8, or more tasks",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_contradicts_itself_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))


@pytest.mark.parametrize("name", ["vdn", "ippo"])
def test_a_critic_learning_rate_is_accepted_where_a_network_learns(name: str) -> None:
    batch_plan(Settings(advantage=name, critic_learning_rate=0.01))


@pytest.mark.parametrize(
    "values",
    [
        {"advantage": "reinforce_pp"},
        {"advantage": "return_to_go"},
        {"advantage": "baseline"},
        {"advantage": "ippo"},
        {"advantage": "mappo"},
        {"advantage": "grpo", "normalize_over": "environment"},
        {"advantage": "grpo", "normalize": "none"},
    ],
)
def test_groups_of_one_game_go_with_a_comparison_beyond_the_group(values: dict[str, Any]) -> None:
    assert batch_plan(Settings(num_generations=1, **values)).games == 8


def _one_game_groups(step: int) -> list[list[Episode]]:
    return [[group[0]] for group in written_games(step)] + [
        [group[1]] for group in written_games(step)
    ]


def test_a_run_learns_from_groups_of_one_game_and_counts_no_flat_ones(tmp_path: Path) -> None:
    test = RunOfATest(
        tmp_path,
        num_steps=2,
        games=_one_game_groups,
        advantage="return_to_go",
        num_generations=1,
        tasks_per_step=4,
    )
    before = test.weights("player_0")
    train(test.run)
    assert not same_weights(before, test.weights("player_0"))
    assert [row["games"] for row in test.events.rows] == [4.0, 4.0]
    assert [row["groups_dropped"] for row in test.events.rows] == [0.0, 0.0]
    assert "flat_group_share" not in test.events.rows[0]
    assert test.incidents == []


CHANGES: list[dict[str, Any]] = [
    {"whiten_advantages": True},
    {"whiten_rewards": True},
    {"reward_clip": 0.5},
    {"advantage_clip": 0.1},
    {"normalize": "mean", "normalize_over": "step"},
    {"gamma": 0.5, "advantage": "return_to_go"},
    {"dual_clip": 1.01, "updates_per_step": 4},
]


@pytest.mark.parametrize("values", CHANGES, ids=lambda values: next(iter(values)))
def test_each_setting_of_the_objective_reaches_the_run_and_keeps_players_apart(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    def games(step: int, bonus: float = 0.0) -> list[list[Episode]]:
        """Player 0's second turn pays it alone; with a bonus player 1's turn pays that player."""
        groups = []
        for task, group in enumerate(written_games(step)):
            episodes = []
            for number, episode in enumerate(group):
                first, second = episode.turns
                last = made_turn(
                    0, 9, 3 + number, version=step, rewards={"illegal": -2.0 * number - 0.5}
                )
                own = {"score": 0.5, "private": bonus * (number + 1) ** 2 * (task + 1)}
                rewards = (dict(second.rewards[0]), own)
                second = made_turn(1, *second.reply_ids, prompt_ids=(2, 1), version=step)
                second = _paid(second, rewards)
                episodes.append(made_episode(first, second, last, **_rest(episode)))
            groups.append(episodes)
        return groups

    if "normalize" not in values:
        # Divided by the deviation, two games have the same advantages whatever they are paid.
        values = {"advantage_scale": "none", **values}
    kept = ("advantage", "updates_per_step", "advantage_scale")
    base = {key: value for key, value in values.items() if key in kept}
    plain = RunOfATest(tmp_path / "plain", games=games, **base)
    train(plain.run)
    changed = RunOfATest(tmp_path / "changed", games=games, **values)
    train(changed.run)
    assert not same_weights(plain.weights("player_0"), changed.weights("player_0"))
    # What player 1 is paid alone cannot move player 0.
    other = RunOfATest(tmp_path / "other", games=lambda step: games(step, -3.0), **values)
    train(other.run)
    assert same_weights(changed.weights("player_0"), other.weights("player_0"))
    assert not same_weights(changed.weights("player_1"), other.weights("player_1"))


def _paid(turn: Turn, rewards: tuple[dict[str, float], ...]) -> Turn:
    return replace(turn, rewards=rewards)


def _rest(episode: Episode) -> dict[str, Any]:
    return {
        "seats": episode.seats,
        "seed": episode.seed,
        "game": episode.game,
        "spec_hash": episode.spec_hash,
    }
