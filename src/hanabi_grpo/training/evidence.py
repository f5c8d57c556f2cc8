"""The statistics of the mismatch check, as pure functions, with bounds on the false stop rate.

Let s be the sampler's logprobs and t the trainer's logprobs of the same tokens, both in nats. Every
term is weighted by

    w = exp(t − s) = p_trainer / p_sampler,

which turns a sum over tokens drawn from s into a sum over tokens drawn from t. Without w, rounding
would look like another policy, because the sampler prefers the tokens that its rounding overrates.

**Another policy** (`compare`). A suspect's logprobs are o = t + d: the previous version, the own
adapter × .99, a temperature × 1.01. The slope

    b = Σ w (s − t) d / Σ d²

is 0 if t sampled, 1 if o sampled, and −1 equally far on the opposite side. A run is stopped if b is
beyond ±1/2, measured in standard errors:

    z = Σ x / sqrt(Σ (sum of x over a block of tokens)²) > LIMIT,   x = ± w (s − t) d − d² / 2.

The rounding of t enters both (s − t) and d, and pulls b to 1/2 at most. If t sampled, and if blocks
are independent and symmetric, exp(λ Σ x − λ² Σ x² / 2) has a mean of at most 1 for every λ > 0.
Proof: a block has x = ± a − c with c ≥ 0. With f(u) = exp(u − u² / 2) and u = λ (a − c), its mean
is (f(u) + f(−u − 2 λ c)) / 2. f increases below 1, so for u ≥ 0 the mean is at most
cosh(u) exp(−u² / 2) ≤ 1, and for u < 0 both terms are below f(0) = 1. So for one fixed λ, z exceeds
h with a probability of at most exp(−h² / 2) (Efron 1969, "Student's t-test under symmetry
conditions", for c = 0). The best λ is only known afterwards: 17 values, each 1.5 times the one
before, cover a range of 1 to 650 of sqrt(Σ x²), and the best of them gives at least 95 % of z² / 2.

Rounding errors are a function of the context, so the same token in the same context has the same
error, in every game and in every step. If only m of N tokens are different, Σ (…)² is multiplied by
N / m, and a suspect counts only if a permanent error in one step's m contexts could not look like
half of d: D ≥ `DISTANCE` · σ / sqrt(m), with D the root mean square of d and σ = 1.25 times the
running median of gaps (`is_far_enough`).

In 16 bits a sampler adds an adapter's output to an output that is already rounded, and rounds the
sum. An update smaller than half the distance between two numbers is lost, and the sampler *is* the
previous version. Measured on a random Qwen3-0.6B in bfloat16: B of ± 2e-5 kept 0.2 % of its effect,
1e-4 kept 39 %, 5e-4 kept all (CPU; on an H100 a run's second step looked stale, with b = 0.9). The
trainer in the same format loses as much. Its logprobs t' and o' in that format give two shares:

    kept = Σ (o' − t') d / Σ d²,   lost = Σ w (t' − t) d / Σ d².

`kept` is the share of a suspect's distance that can be observed, and `lost` is the slope that the
format causes for the right policy. Neither determines the other: an adapter kept .36 of its effect
(one H200), and its step from × .9 to × 1 was kept almost whole, but b was 6.3. A suspect counts in
the steps in which at least `KEPT_SHARE` is kept and no more than 1 − `KEPT_SHARE` is lost.

**Sampled tokens** (`surprise_score`). Under t, f(token) = min(−t, CEILING) has a known mean and
variance at every position: two sums over the vocabulary. Tokens are drawn one after the other, so
S = Σ w (f − mean) is a martingale with the predictable variance V = Σ variance. No upward increment
is larger than b = CEILING · LARGEST_WEIGHT, and no downward increment is larger than
b = mean · LARGEST_WEIGHT, which is small if a policy is certain. For each λ,
exp(λ S − Σ variance (exp(λ b) − 1 − λ b) / b²) is a supermartingale, and the same holds with −S
(Freedman 1975). The probability that it ever exceeds exp(h² / 2) is at most exp(−h² / 2) (Ville),
without a limit theorem and from the first token on. (The variance of w f equals that of f up to the
square of the gap, below 1 % in 16 bits.) z is the h of the best λ. Without a ceiling, one token of
probability 10⁻⁸ would count 18 nats. Dropped games are missing from the sums, perhaps because of
what was said in them: D dropped games can shift S by at most sqrt(D V) (Cauchy-Schwarz), which is
subtracted from |S|.

**Equal episodes** (`count_repeats`). Given the earlier episodes of its group, an episode repeats
one of them with probability Q: the sum of the probabilities of the distinct ones, computed from
their logprobs. Π exp(λ r) / (1 − Q + Q exp(λ)), with r = 1 for a repeat, has a mean of at most 1. A
policy that is certain of every token has Q near 1, so its equal episodes are no evidence.

With TOP_P and TOP_K, tokens are drawn from t restricted to the tokens that pass. The mean and the
variance above are then those of the restricted distribution, f is unchanged, and positions where
rounding may decide which tokens pass are skipped. With TOP_P, an episode's probability is at most
that of its logprobs, divided by TOP_P for every token. TOP_K has no such bound, so with TOP_K equal
episodes are counted but never stop a run.

**False stops.** Each z is computed over the last 1, 2, 3, 4, 6, … 64 steps. All sums that start at
the same step share one bound (Ville), so the bound counts starts. Policies: five players, 1,000
steps and four suspects per step on two sides are 40,000 starts, times
17 · exp(−.95 · 7² / 2) = 1.3e-9, which is 5e-5. Surprises: 10,000 starts times 7 values of λ times
exp(−7² / 2) = 2.3e-11, which is 2e-6. Equal episodes contribute less. In total, a correct run is
stopped with a probability below 1e-4.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from hanabi_grpo.types import Episode

LIMIT = 7.0
"""Standard errors at which a run is stopped."""
WARNING = 6.0
"""Standard errors above which there is an incident."""
SPANS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of most recent steps over which evidence is summed."""
STEPS = SPANS[-1]
"""Number of steps of evidence that are kept."""
BLOCK = 8
"""Tokens per block: neighboring tokens share the rounding errors of their context. z cannot exceed
the root of the number of blocks."""
DISTANCE = 5.0
"""Smallest distance of a suspect, in standard errors of a mean over one step's different tokens."""
KEPT_SHARE = 0.75
"""Share of a suspect's distance that must survive the server's number format; the slope that the
format alone causes may be at most 1 minus this share."""
ROOT_MEAN_SQUARE = 1.25
"""Root mean square of noise, in multiples of its mean size; sqrt(π / 2) for a normal distribution.
"""
CEILING = 5.0
"""Largest surprise of a token, in nats; larger ones are clipped to it."""
LARGEST_WEIGHT = 1.5
"""Largest p_trainer / p_sampler; its inverse is the smallest."""
GAP_FACTOR = 3.0
"""Multiple of the running median above which a step's gap is an incident."""
GAP_STOP_FACTOR = 6.0
"""Multiple of the running median above which a step's gap stops the run."""
GAP_TOKENS = 256
"""Fewest tokens for comparing a step's gap with the running median."""
FIRST_GAP = 1e-5
"""Nats per token, in float32: a first step's gap above it is an incident."""
SMALLEST_GAP = {"float32": 2.5e-7, "bfloat16": 1.5e-3, "float16": 2e-4}
"""Smallest running median in nats per token, by number format; smaller ones are raised to it.

Late in training most tokens are certain, and the few others determine a step's mean."""
_SURPRISE_RATES = tuple(2.0**-power for power in range(7))
"""Values of λ for surprises, see the module."""
_REPEAT_RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Values of λ for equal episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where a sampler's logprobs lie between those of its own policy and those of another one."""

    toward: float
    """Σ x on the other policy's side, see the module."""
    toward_squares: float
    """Sum of the squared block sums of `toward`."""
    away: float
    """Σ x on the opposite side."""
    away_squares: float
    """Sum of the squared block sums of `away`."""
    distance: float
    """Σ d², the distance between the two policies."""
    residual: float
    """Σ (s − o)², the part of the gap that the other policy leaves unexplained."""
    kept: float
    """Σ (o' − t') d, with o' and t' computed by the trainer in the server's number format."""
    lost: float
    """Σ w (t' − t) d."""

    @property
    def product(self) -> float:
        """Σ w (s − t) d."""
        return self.toward + self.distance / 2

    @property
    def slope(self) -> float:
        """0 if the own policy sampled, 1 if the other one did."""
        return self.product / self.distance

    @property
    def kept_share(self) -> float:
        """Share of the distance that survives the server's number format; 1 in float32."""
        return self.kept / self.distance

    @property
    def lost_share(self) -> float:
        """The slope that the server's number format causes for the right policy; 0 in float32."""
        return self.lost / self.distance

    @property
    def survives_rounding(self) -> bool:
        """Whether the slope is meaningful in the server's number format, see the module."""
        return self.kept_share >= KEPT_SHARE and abs(self.lost_share) <= 1 - KEPT_SHARE

    def evidence(self, repetition: float) -> list[float]:
        """Return the numbers to keep for `policy_score`.

        Args:
            repetition: Number of tokens divided by the number of different tokens, N / m.
        """
        return [
            self.toward,
            repetition * self.toward_squares,
            self.away,
            repetition * self.away_squares,
        ]

    @property
    def numbers(self) -> list[float]:
        """All fields in order, to be summed over processes."""
        return [*self.evidence(1.0), self.distance, self.residual, self.kept, self.lost]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Comparison":
        """Return the comparison that has these `numbers`."""
        toward, toward_squares, away, away_squares, distance, residual, kept, lost = numbers
        return cls(
            toward=toward,
            toward_squares=toward_squares,
            away=away,
            away_squares=away_squares,
            distance=distance,
            residual=residual,
            kept=kept,
            lost=lost,
        )


NUM_NUMBERS = len(Comparison.__dataclass_fields__)
"""Length of a comparison's `numbers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The strongest evidence against a policy."""

    z: float
    """Standard errors, as the module's docstring defines them."""
    num_steps: int
    """Number of steps that the evidence is summed over."""
    sign: int = 1
    """1 on the suspect's side, or if the sampled tokens are too surprising; −1 on the other side.
    """


NO_SCORE = Score(z=0.0, num_steps=0)


def trust_weights(own: torch.Tensor, sampler: torch.Tensor) -> torch.Tensor:
    """Return w = p_trainer / p_sampler of [tokens], clamped by LARGEST_WEIGHT and its inverse."""
    return (own - sampler).exp().clamp(1 / LARGEST_WEIGHT, LARGEST_WEIGHT)


def compare(
    sampler: torch.Tensor,
    own: torch.Tensor,
    other: torch.Tensor,
    served_own: torch.Tensor | None = None,
    served_other: torch.Tensor | None = None,
) -> Comparison:
    """Return where [tokens] logprobs of the sampler lie between those of two policies.

    All sums are 0 if any logprob is not finite.

    Args:
        sampler: The sampler's logprobs.
        own: Logprobs of the policy that should have sampled.
        other: Logprobs of the suspect.
        served_own: `own` in the server's number format; None: the same as `own`.
        served_other: `other` in that format; None: as far from `served_own` as from `own`.
    """
    s = sampler.double()
    t = own.double()
    o = other.double()
    d = o - t
    weights = trust_weights(t, s)
    product = weights * (s - t) * d
    served_t = t if served_own is None else served_own.double()
    served_d = d if served_other is None else served_other.double() - served_t
    kept = served_d * d
    lost = weights * (served_t - t) * d
    if not bool(product.isfinite().all() & kept.isfinite().all() & lost.isfinite().all()):
        return Comparison.of([0.0] * NUM_NUMBERS)
    toward = product - d.square() / 2
    away = -product - d.square() / 2
    return Comparison(
        toward=float(toward.sum()),
        toward_squares=_block_squares(toward),
        away=float(away.sum()),
        away_squares=_block_squares(away),
        distance=float(d.square().sum()),
        residual=float((s - o).square().sum()),
        kept=float(kept.sum()),
        lost=float(lost.sum()),
    )


def _block_squares(values: torch.Tensor) -> float:
    blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    return float(blocks.sum(1).square().sum())


def is_far_enough(
    distance: float, noise: float, *, num_tokens: float, num_different: float
) -> bool:
    """Tell whether a suspect is too far away to be confused with repeated rounding errors.

    Args:
        distance: Σ d² over a step's tokens.
        noise: Mean |s − t| of earlier steps.
        num_tokens: Number of tokens in the step.
        num_different: Number of tokens that differ in the token itself or in its context.
    """
    if not num_tokens or not num_different:
        return False
    deviation = ROOT_MEAN_SQUARE * noise
    return distance / num_tokens >= (DISTANCE * deviation) ** 2 / num_different


def spans(steps: Sequence[Sequence[float]]) -> Iterable[tuple[int, list[float]]]:
    """Yield each number of steps in `SPANS` with the column sums over that many last steps."""
    for num_steps in SPANS:
        if num_steps > len(steps):
            return
        last = steps[-num_steps:]
        yield num_steps, [sum(column) for column in zip(*last, strict=True)]


def policy_score(steps: Sequence[Sequence[float]]) -> Score:
    """Return the strongest evidence that another policy sampled.

    The evidence is summed over the last 1, 2, 3, 4, 6, … steps, on both sides.

    Args:
        steps: `Comparison.evidence` of each step.
    """
    best = NO_SCORE
    for num_steps, [toward, toward_squares, away, away_squares] in spans(steps):
        for sign, total, squares in ((1, toward, toward_squares), (-1, away, away_squares)):
            if squares > 0:
                score = Score(z=total / squares**0.5, num_steps=num_steps, sign=sign)
                best = max(best, score, key=_strength)
    return best


def surprise_sums(
    sampler: torch.Tensor, own: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
) -> list[float]:
    """Return S, V, and for each λ the price of −S; all arguments are [tokens].

    Args:
        sampler: The sampler's logprobs.
        own: The trainer's logprobs.
        mean: Mean surprise of a token that the trainer's policy draws.
        variance: Variance of that surprise.
    """
    surprise = (-own).clamp(max=CEILING) - mean
    bounds = (mean * LARGEST_WEIGHT).clamp(min=1e-6)
    sums = [float((trust_weights(own, sampler) * surprise).sum()), float(variance.sum())]
    for rate in _SURPRISE_RATES:
        steepness = rate * bounds
        growth = (torch.expm1(steepness) - steepness) / bounds.square()
        # The series is exact to a millionth where the difference would lose all its digits.
        growth = torch.where(steepness < 1e-3, rate**2 / 2 * (1 + steepness / 3), growth)
        sums.append(float((variance * growth).sum()))
    return sums


NUM_SURPRISE_SUMS = 2 + len(_SURPRISE_RATES)
"""Length of `surprise_sums`."""


def surprise_score(steps: Sequence[Sequence[float]]) -> Score:
    """Return the strongest evidence that tokens were drawn from another distribution.

    Args:
        steps: Per step, the number of dropped games, then `surprise_sums`, see the module.
    """
    bound = CEILING * LARGEST_WEIGHT
    best = NO_SCORE
    for num_steps, [num_dropped, total, variance, *prices_below] in spans(steps):
        shift = abs(total) - math.sqrt(num_dropped * variance)
        evidence = 0.0
        for rate, price_below in zip(_SURPRISE_RATES, prices_below, strict=True):
            price = price_below
            if total > 0:
                price = variance * (math.expm1(rate * bound) - rate * bound) / bound**2
            evidence = max(evidence, rate * shift - price)
        sign = 1 if total > 0 else -1
        score = Score(z=math.sqrt(2 * evidence), num_steps=num_steps, sign=sign)
        best = max(best, score, key=_strength)
    return best


def count_repeats(groups: Sequence[Sequence[Episode]], top_p: float = 1.0) -> list[float]:
    """Return the number of the step's equal episodes, and for each λ the price of repeats.

    Two episodes of a group are equal if all tokens of all players are equal.

    Args:
        groups: The groups as they were drawn.
        top_p: TOP_P. The tokens that pass have a total probability of at least this, so a token is
            drawn with at most its probability in the whole distribution divided by `top_p`.

    Returns:
        The number of repeats, then Σ log(1 − Q + Q exp(λ)) for each λ, see the module.
    """
    num_repeats = 0
    prices = [0.0] * len(_REPEAT_RATES)
    log_top_p = math.log(top_p)
    for group in groups:
        probabilities: dict[object, float] = {}
        for episode in group:
            tokens = tuple((turn.player, turn.prompt_ids, turn.reply_ids) for turn in episode.turns)
            # A sum above 1 is a rounding error.
            expected = min(1.0, sum(probabilities.values()))
            for position, rate in enumerate(_REPEAT_RATES):
                prices[position] += math.log1p(expected * math.expm1(rate))
            num_repeats += tokens in probabilities
            logprob = 0.0
            for turn in episode.turns:
                logprob += sum(turn.logprobs)
                if top_p < 1:
                    # No probability is above 1.
                    logprob -= sum(max(log_top_p, own) for own in turn.logprobs)
            probabilities[tokens] = math.exp(min(0.0, logprob))
    return [float(num_repeats), *prices]


def repeat_score(steps: Sequence[Sequence[float]]) -> Score:
    """Return the strongest evidence that episodes are equal too often.

    Args:
        steps: `count_repeats` of each step.
    """
    best = NO_SCORE
    for num_steps, [num_repeats, *prices] in spans(steps):
        evidence = 0.0
        for rate, price in zip(_REPEAT_RATES, prices, strict=True):
            evidence = max(evidence, rate * num_repeats - price)
        score = Score(z=math.sqrt(2 * evidence), num_steps=num_steps)
        best = max(best, score, key=_strength)
    return best


def _strength(score: Score) -> tuple[float, int]:
    return score.z, score.num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLimits:
    """Limits of the mean |trainer − sampler| for an incident and for a stop, in nats per token."""

    incident: float
    stop: float
    median: float | None
    """Median of the earlier steps; None if there are no earlier steps."""


def gap_limits(earlier: Sequence[float], dtype: str, tolerance: float) -> GapLimits:
    """Return the limits of a step's gap.

    In the first step only the tolerance is known. In float32, correct gaps are known to be far
    below it (`FIRST_GAP`); in 16 bits, models differ too much for such a limit.

    Args:
        earlier: Gaps of the earlier steps.
        dtype: HANABI_DTYPE.
        tolerance: HANABI_PARITY_TOLERANCE, which no limit exceeds.
    """
    smallest = SMALLEST_GAP[dtype]
    if not earlier:
        first = FIRST_GAP if dtype == "float32" else tolerance
        return GapLimits(incident=min(first, tolerance), stop=tolerance, median=None)
    median = statistics.median(earlier)
    noise = max(median, smallest)
    return GapLimits(
        incident=min(GAP_FACTOR * noise, tolerance),
        stop=min(GAP_STOP_FACTOR * noise, tolerance),
        median=median,
    )


def remember(
    evidence: dict[str, list[list[float]]], key: str, value: Sequence[float]
) -> list[list[float]]:
    """Add a step's numbers to the evidence under a key; returns all steps kept there.

    Entries of a different length, left by another version of this check, are discarded.
    """
    steps = [step for step in evidence.get(key, []) if len(step) == len(value)]
    steps.append(list(value))
    evidence[key] = steps[-STEPS:]
    return evidence[key]


def copy_evidence(
    evidence: Mapping[str, Sequence[Sequence[float]]],
) -> dict[str, list[list[float]]]:
    """Return a copy of the evidence that can be modified."""
    copied = {}
    for key, steps in evidence.items():
        copied[key] = [list(step) for step in steps]
    return copied
