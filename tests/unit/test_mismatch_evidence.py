"""The mismatch check's statistics: what they see, and how seldom they see what is not there."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from hanabi_grpo.training.evidence import (
    LIMIT,
    NUM_NUMBERS,
    STEPS,
    WARNING,
    Comparison,
    Score,
    compare,
    count_repeats,
    gap_limits,
    is_far_enough,
    policy_score,
    repeat_score,
    surprise_score,
    surprise_sums,
)
from hanabi_grpo.training.model.output_head import law_of_logits
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn


def test_the_slope_is_0_for_the_own_policy_and_1_for_the_other_and_below_0_beyond() -> None:
    own = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    other = own + torch.tensor([-0.002, 0.004, 0.0], dtype=torch.float64)
    for share in (0.0, 0.5, 1.0, -1.0):
        sampler = own + share * (other - own)
        comparison = compare(sampler, own, other)
        assert comparison.slope == pytest.approx(share, abs=0.005)
        assert comparison.distance == pytest.approx(2e-5)
        assert comparison.residual == pytest.approx((1 - share) ** 2 * 2e-5)
    nothing = Comparison.of([0.0] * NUM_NUMBERS)
    assert compare(own, own * float("nan"), other) == nothing
    assert compare(own, own, own) == nothing


def test_the_score_is_the_strongest_over_the_last_1_2_3_4_6_and_more_steps_on_both_sides() -> None:
    ones = [[1.0, 1.0, -3.0, 1.0]] * 9
    # A sum over 12 steps needs 12.
    assert policy_score(ones) == Score(z=pytest.approx(8**0.5), num_steps=8, sign=1)
    assert policy_score(ones[:3]) == Score(z=pytest.approx(3**0.5), num_steps=3, sign=1)
    assert policy_score([]) == Score(z=0.0, num_steps=0)
    last = [-4.0, 1.0, 5.0, 1.0]
    assert policy_score([*ones, last]) == Score(z=pytest.approx(5.0), num_steps=1, sign=-1)


@pytest.mark.parametrize(
    ("change", "rounding", "stale_by"), [(0.01, 0.0, 2), (0.005, 0.0, 8), (0.01, 0.03, STEPS)]
)
def test_noise_that_is_larger_than_the_change_hides_no_stale_adapter_and_makes_none(
    change: float, rounding: float, stale_by: int
) -> None:
    seeded = torch.Generator().manual_seed(0)
    slopes: dict[bool, list[float]] = {False: [], True: []}

    def step(is_stale: bool, size: float) -> list[float]:
        now = torch.randn(3072, generator=seeded)
        noise = torch.randn(3, 3072, generator=seeded)
        before = now + size * torch.randn(3072, generator=seeded)
        sampler = (before if is_stale else now) + 0.03 * noise[0]
        own = now + rounding * noise[1]
        other = before + rounding * noise[2]
        comparison = compare(sampler, own, other)
        slopes[is_stale].append(comparison.slope)
        return comparison.evidence(1.0)

    fresh = [step(False, change) for _ in range(STEPS)]
    stale = [step(True, change) for _ in range(STEPS)]
    fresh_mean, stale_mean = (sum(of_steps) / STEPS for of_steps in slopes.values())
    if rounding:
        # Were the trainer's values rounded as well: drawn to 1/2, yet each on its own side.
        assert 0.4 < fresh_mean < 0.5 < stale_mean < 0.6
    else:
        assert [fresh_mean, stale_mean] == pytest.approx([0, 1], abs=0.1)
    assert policy_score(fresh).z < 1
    assert policy_score(stale[:stale_by]).z > LIMIT
    equal = [step(False, 1e-4) for _ in range(1000)]
    largest = max(policy_score(equal[max(0, end - STEPS) : end]).z for end in range(1, 1001))
    assert largest < WARNING


def test_rounding_that_is_the_same_in_every_step_is_no_other_policy() -> None:
    # Gaps of .004 on average are a deviation of .005, and 5 / sqrt(100) of it is .0025.
    for root_mean_square, expected in ((0.0024, False), (0.0026, True)):
        distance = 500 * root_mean_square**2
        assert is_far_enough(distance, 0.004, num_tokens=500.0, num_different=100.0) is expected
    assert not is_far_enough(0.0, 0.0, num_tokens=0.0, num_different=0.0)


def test_equal_tokens_in_equal_contexts_count_once() -> None:
    own = torch.randn(320, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = own + 0.01
    sampler = own + 0.01 * torch.randn(320, dtype=torch.float64)
    once = compare(sampler, own, other)
    many = compare(sampler.repeat(4), own.repeat(4), other.repeat(4))
    assert policy_score([many.evidence(4.0)]).z == pytest.approx(
        policy_score([once.evidence(1.0)]).z
    )


def _drawn(law_logits: torch.Tensor, drawn_from: torch.Tensor, seed: int) -> list[float]:
    """Return a step's dropped games and surprises, of tokens that are drawn from some logits."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(drawn_from.softmax(-1), 1, generator=generator)
    law = law_of_logits(law_logits, tokens, 1.0, 5.0)
    own = law.logprobs[:, 0].double()
    return [0.0, *surprise_sums(own, own, law.mean.double(), law.variance.double())]


def _logits(seed: int, num_tokens: int = 1000, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(num_tokens, 40, generator=generator)


def test_the_law_of_a_token_is_its_logprob_and_the_mean_and_variance_of_surprises() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 20.0]])
    law = law_of_logits(logits, torch.tensor([[0], [1]]), 1.0, 5.0)
    quarter = math.log(4.0)
    rest = math.log(4 / 3)
    mean = 0.25 * quarter + 0.75 * rest
    assert law.logprobs.flatten().tolist() == pytest.approx([-quarter, 0.0], abs=1e-6)
    # The second token is certain; the other one counts 5 nats of its 20.
    assert law.mean.tolist() == pytest.approx([mean, 0.0], abs=1e-6)
    variance = 0.25 * (quarter - mean) ** 2 + 0.75 * (rest - mean) ** 2
    assert law.variance.tolist() == pytest.approx([variance, 0.0], abs=1e-6)
    hot = law_of_logits(2 * logits, torch.tensor([[0], [1]]), 2.0, 5.0)
    assert hot.mean.tolist() == pytest.approx(law.mean.tolist())


def test_tokens_of_their_own_policy_are_as_surprising_as_it_says() -> None:
    steps = [_drawn(_logits(step), _logits(step), step) for step in range(300)]
    largest = max(surprise_score(steps[max(0, end - STEPS) : end]).z for end in range(1, 301))
    assert largest < 4.5


def _only_near_the_largest(logits: torch.Tensor, distance: float) -> torch.Tensor:
    largest = logits.max(-1, keepdim=True).values
    return logits.masked_fill(logits < largest - distance, -1e9)


@pytest.mark.parametrize(
    ("change", "num_steps", "sign"),
    [
        (lambda logits: logits / 0.7, 1, -1),
        (lambda logits: logits / 0.9, 8, -1),
        (lambda logits: logits / 1.1, 8, 1),
        (lambda logits: _only_near_the_largest(logits, 3.0), 2, -1),
        (lambda logits: _only_near_the_largest(logits, 0.0), 1, -1),
    ],
    ids=["temperature .7", "temperature .9", "temperature 1.1", "a filter", "greedy"],
)
def test_tokens_of_another_distribution_are_seen_whatever_was_reported(
    change: Callable[[torch.Tensor], torch.Tensor], num_steps: int, sign: int
) -> None:
    steps = [_drawn(_logits(step), change(_logits(step)), step) for step in range(num_steps)]
    score = surprise_score(steps)
    assert score.z > LIMIT
    assert score.sign == sign


def test_a_policy_that_is_nearly_sure_of_everything_is_not_stopped_by_one_rare_token() -> None:
    # A token of probability 4e-6 among 3,000: twelve nats, and the variance of all is .3.
    tokens = torch.zeros(3000, 1, dtype=torch.long)
    tokens[0] = 1
    law = law_of_logits(torch.tensor([[12.4, 0.0]]).repeat(3000, 1), tokens, 1.0, 5.0)
    own = law.logprobs[:, 0].double()
    sums = surprise_sums(own, own, law.mean.double(), law.variance.double())
    assert sums[:2] == pytest.approx([4.94, 0.309], abs=0.01)
    assert sums[0] / sums[1] ** 0.5 > LIMIT
    assert surprise_score([[0.0, *sums]]).z < 3.0


def test_a_sure_policy_that_is_always_sure_is_seen_sooner_than_rare_tokens_are() -> None:
    # The likelier token has a probability of .95, and 400 times in a row it was drawn.
    logits = torch.tensor([[math.log(19.0), 0.0]]).repeat(400, 1)
    law = law_of_logits(logits, torch.zeros(400, 1, dtype=torch.long), 1.0, 5.0)
    own = law.logprobs[:, 0].double()
    sums = surprise_sums(own, own, law.mean.double(), law.variance.double())
    # log(.95 ** 400) = -20.5 is what it is worth at most: h = 6.4.
    assert 4 < surprise_score([[0.0, *sums]]).z < 6.4


def test_games_that_are_missing_take_off_as_much_as_they_can_have_shifted() -> None:
    prices = [900 * rate**2 / 2 for rate in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)]
    step = [0.0, -300.0, 900.0, *prices]
    assert surprise_score([step]).z == pytest.approx(9.68, abs=0.01)
    # Nine games whose tokens all spoke the other way: 3 standard errors of 30.
    with_dropped = [9.0, -390.0, 900.0, *prices]
    assert surprise_score([with_dropped]).z == pytest.approx(surprise_score([step]).z)


def _episode(number: int, logprob: float) -> Episode:
    turns = [made_turn(0, number, logprobs=logprob / 2), made_turn(1, 5, logprobs=logprob / 2)]
    return made_episode(*turns)


def test_equal_episodes_count_against_the_probability_that_their_own_logprobs_name() -> None:
    # Four equal ones of probability e^-20, then a fifth of another kind.
    group = [*[_episode(1, -20.0)] * 4, _episode(2, -20.0)]
    counts = count_repeats([group])
    assert counts[0] == 3
    assert repeat_score([counts]).z > LIMIT
    # Players who say something else, or were shown something else, did not repeat.
    shown = replace(group[0].turns[0], prompt_ids=(3,))
    other = replace(group[0], turns=(shown, group[0].turns[1]))
    assert count_repeats([[group[0], other]])[0] == 0
    assert count_repeats([[group[0]], [group[0]]])[0] == 0


def test_equal_episodes_of_a_policy_that_is_sure_are_honest() -> None:
    group = [_episode(1, -1e-4)] * 16
    counts = count_repeats([group] * 4)
    assert counts[0] == 60
    assert repeat_score([counts] * STEPS).z < 2
    # Once in a while two equal ones of probability e^-6 are chance.
    chance = count_repeats([[*[_episode(1, -6.0)] * 2, _episode(2, -6.0), _episode(3, -6.0)]])
    assert 2 < repeat_score([chance]).z < 4


def test_gaps_are_judged_by_their_median_and_never_by_less_than_the_formats_smallest() -> None:
    first = gap_limits([], "float32", 0.001)
    assert (first.incident, first.stop) == (pytest.approx(1e-5), 0.001)
    first = gap_limits([], "bfloat16", 0.05)
    assert (first.incident, first.stop) == (0.05, 0.05)
    for earlier, dtype, tolerance, expected in (
        ([3e-7] * 5, "float32", 0.001, (9e-7, 1.8e-6)),
        ([3e-8] * 5, "float32", 0.001, (7.5e-7, 1.5e-6)),
        ([3e-6, 4e-6, 9e-6], "float32", 0.001, (1.2e-5, 2.4e-5)),
        ([0.004] * 3, "bfloat16", 0.05, (0.012, 0.024)),
        ([0.04] * 3, "bfloat16", 0.05, (0.05, 0.05)),
        ([1e-6], "bfloat16", 0.05, (4.5e-3, 9e-3)),
    ):
        limits = gap_limits(earlier, dtype, tolerance)
        assert (limits.incident, limits.stop) == pytest.approx(expected)
