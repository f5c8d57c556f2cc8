"""The statistics of the mismatch check, as pure functions, with the bounds of a false stop.

Sampler's logprobs s, the trainer's t of the same tokens, both in nats. Everything is weighed by

    w = exp(t − s) = p_trainer / p_sampler,

which makes a sum over tokens that were drawn from s a sum over tokens drawn from t: rounding makes
the sampler choose what it happens to overrate, and without w that looks like another policy.

**Another policy** (`compare`). A suspect's logprobs are o = t + d: the version before, the own
adapter × .99, a temperature × 1.01. The slope

    b = Σ w (s − t) d / Σ d²

is 0 where t sampled, 1 where o did, −1 as far on the other side. A run is stopped where b is
beyond ±1/2, in standard errors:

    z = Σ x / sqrt(Σ (sum of x over a block of tokens)²) > LIMIT,   x = ± w (s − t) d − d² / 2.

Rounding of t is in (s − t) and in d, and draws b to 1/2 at most. Where t sampled, and blocks are
independent and as likely positive as negative, exp(λ Σ x − λ² Σ x² / 2) has a mean of at most 1
for every λ > 0: of a block x = ± a − c with c ≥ 0, and with f(u) = exp(u − u² / 2), u = λ (a − c)
it is (f(u) + f(−u − 2 λ c)) / 2; f rises below 1, so that is at most cosh(u) exp(−u² / 2) ≤ 1
where u ≥ 0, and where it is not both are below f(0) = 1. So z passes h at one given λ with a
probability of at most exp(−h² / 2) (Efron 1969, "Student's t-test under symmetry conditions", has
it without a c). Which λ is the best is seen afterwards: 17 values, each 1.5 times the one before,
cover a range of 1 to 650 of sqrt(Σ x²), and the best of them gives at least 95 % of z² / 2.

Rounding is a function of what stands before a token, so that the same token in the same context has
the same error, in every game and in every step. m of N tokens differ: Σ (…)² counts N / m times,
and a suspect counts only where the error of one step's m contexts, were it the same for ever, could
not look like half of d: D ≥ `DISTANCE` · σ / sqrt(m), D the root of the mean d², σ = 1.25 times the
running median of gaps (`is_far_enough`).

In 16 bits a sampler adds an adapter's output to one that is rounded already, and rounds the sum: an
update below half the distance of two numbers is lost, and the sampler *is* the version before. Of
a random Qwen3-0.6B in bfloat16 a B of ± 2e-5 left 0.2 % of its effect, 1e-4 39 %, 5e-4 all (CPU;
on an H100 a run's second step looked stale, with b = 0.9). The trainer in the same format loses as
much. Two shares say what its logprobs t' and o' in that format are worth:

    kept = Σ (o' − t') d / Σ d²,   lost = Σ w (t' − t) d / Σ d².

`kept` of a suspect's distance is there to be seen, and `lost` is the slope that the format makes of
the right policy. Neither follows from the other: of an adapter that kept .36 of its effect (one
H200), the step from × .9 to × 1 was kept almost whole, and yet b was 6.3. A suspect counts in the
steps where at least `KEPT_SHARE` is kept and no more than the rest of 1 is lost.

**What was sampled** (`surprise_score`). f(token) = min(−t, CEILING) has under t a known mean and
variance at every position: two sums over the vocabulary. Tokens are drawn one after the other, so
S = Σ w (f − mean) is a martingale, V = Σ variance its predictable variance. No increment upwards is
larger than b = CEILING · LARGEST_WEIGHT, and none downwards than b = mean · LARGEST_WEIGHT, which
is little where a policy is sure. exp(λ S − Σ variance (exp(λ b) − 1 − λ b) / b²) is a
supermartingale for each λ, and so it is with −S (Freedman 1975); that it ever passes exp(h² / 2)
has at most the probability exp(−h² / 2) (Ville): no limit theorem, and no wait for many tokens.
(The variance of w f is that of f but for the square of the gap, below 1 % in 16 bits.) z is the h
of the best λ. Without a ceiling one token of probability 10⁻⁸ would count 18 nats. Games that were
dropped are missing from the sums, perhaps because of what was said in them: D of them can shift S
by no more than sqrt(D V) (Cauchy and Schwarz), which is taken off |S|.

**Equal episodes** (`count_repeats`). Given the episodes of a group before it, an episode of the
same task repeats one of them with probability Q: the sum of the probabilities of the different
ones, which their logprobs name. Π exp(λ r) / (1 − Q + Q exp(λ)) with r = 1 for a repeat has mean
1 at most. A policy that is sure of every token has Q near 1, and its equal episodes are honest.

With TOP_P and TOP_K tokens are drawn from t restricted to the tokens that pass, so mean and
variance above are of that law, f itself stays, and a place is left out where rounding may decide
which tokens pass. An episode's probability is at most that of its logprobs over TOP_P for every
token. What TOP_K leaves out has no such bound: with it equal episodes are counted and stop nothing.

**A run.** Each z is taken over the last 1, 2, 3, 4, 6, … 64 steps. All sums that begin at one step
share one bound (Ville), so what counts is starts: five players, 1,000 steps, four suspects in each
on two sides are 40,000, times 17 · exp(−.95 · 7² / 2) = 1.3e-9 makes 5e-5; 10,000 starts of
surprises times 7 values of λ times exp(−7² / 2) = 2.3e-11 make 2e-6, equal episodes less. In all
a right run is stopped with a probability below 1e-4.
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
"""Standard errors from which on there is an incident."""
SPANS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of steps whose evidence is added up."""
STEPS = SPANS[-1]
"""Steps of evidence that are remembered."""
BLOCK = 8
"""Tokens of a block: neighbours share what rounding did to their context. No z passes the root of
the number of blocks."""
DISTANCE = 5.0
"""Standard errors of a mean over one step's different tokens that a suspect must be away."""
KEPT_SHARE = 0.75
"""Share of a suspect's distance that must survive the server's number format; the slope that the
format makes by itself may be the rest of 1."""
ROOT_MEAN_SQUARE = 1.25
"""Of noise, in multiples of its mean size; sqrt(π / 2) where it is normal."""
CEILING = 5.0
"""Most nats that a token's surprise counts."""
LARGEST_WEIGHT = 1.5
"""Most that p_trainer / p_sampler counts, and its inverse."""
GAP_FACTOR = 3.0
"""Multiple of the running median from which on a step's gap is an incident."""
GAP_STOP_FACTOR = 6.0
"""Multiple of the running median from which on it stops the run."""
GAP_TOKENS = 256
"""Tokens that a step's gap needs."""
FIRST_GAP = 1e-5
"""Nats a token, in float32: a first step's gap above it is an incident."""
SMALLEST_GAP = {"float32": 2.5e-7, "bfloat16": 1.5e-3, "float16": 2e-4}
"""Nats a token, by number format: no running median counts as less.

Late in training most tokens are certain, and the few others make a step's mean."""
_SURPRISE_RATES = tuple(2.0**-power for power in range(7))
"""The λ of surprises, see the module."""
_REPEAT_RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The λ of equal episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a sampler's logprobs lie between those of its own policy and another one."""

    toward: float
    """Σ x on the other policy's side, see the module."""
    toward_squares: float
    """Sum over blocks of its squared sums."""
    away: float
    """Σ x on the opposite side."""
    away_squares: float
    """Sum over blocks of its squared sums."""
    distance: float
    """Σ d², how far the two policies are apart."""
    residual: float
    """Σ (s − o)², how much of the gap the other policy leaves unexplained."""
    kept: float
    """Σ (o' − t') d, both as the trainer computes them in the server's number format."""
    lost: float
    """Σ w (t' − t) d."""

    @property
    def product(self) -> float:
        """Σ w (s − t) d."""
        return self.toward + self.distance / 2

    @property
    def slope(self) -> float:
        """0 where the own policy sampled and 1 where the other one did."""
        return self.product / self.distance

    @property
    def kept_share(self) -> float:
        """Share of the distance that survives the server's number format; 1 in float32."""
        return self.kept / self.distance

    @property
    def lost_share(self) -> float:
        """The slope that the server's number format makes of the right policy; 0 in float32."""
        return self.lost / self.distance

    @property
    def survives_rounding(self) -> bool:
        """Tell whether the slope says anything in the server's number format, see the module."""
        return self.kept_share >= KEPT_SHARE and abs(self.lost_share) <= 1 - KEPT_SHARE

    def evidence(self, repetition: float) -> list[float]:
        """Return what is remembered of it, see `policy_score`.

        Args:
            repetition: Tokens over different tokens, N / m.
        """
        return [
            self.toward,
            repetition * self.toward_squares,
            self.away,
            repetition * self.away_squares,
        ]

    @property
    def numbers(self) -> list[float]:
        """All fields in their order, to be added up over processes."""
        return [*self.evidence(1.0), self.distance, self.residual, self.kept, self.lost]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Comparison":
        """Return it from its `numbers`."""
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
"""Of a comparison's `numbers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The strongest evidence against a policy."""

    z: float
    """Standard errors; what counts as one is in the module's docstring."""
    num_steps: int
    """Steps that it is taken over."""
    sign: int = 1
    """1 on the suspect's side, or where more surprising tokens were sampled; −1 on the other."""


NO_SCORE = Score(z=0.0, num_steps=0)


def trust_weights(own: torch.Tensor, sampler: torch.Tensor) -> torch.Tensor:
    """Return w = p_trainer / p_sampler of [tokens], kept within LARGEST_WEIGHT."""
    return (own - sampler).exp().clamp(1 / LARGEST_WEIGHT, LARGEST_WEIGHT)


def compare(
    sampler: torch.Tensor,
    own: torch.Tensor,
    other: torch.Tensor,
    served_own: torch.Tensor | None = None,
    served_other: torch.Tensor | None = None,
) -> Comparison:
    """Return how [tokens] logprobs of the sampler lie between those of two policies.

    All sums are 0 where a logprob is not finite.

    Args:
        sampler: The sampler's.
        own: Those of the policy that should have sampled.
        other: Those of the suspect.
        served_own: `own` in the number format of the server; None: as it is.
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
    """Tell whether a suspect is so far away that rounding which repeats cannot look like it.

    Args:
        distance: Σ d² over a step's tokens.
        noise: Mean |s − t| of steps before.
        num_tokens: Tokens of the step.
        num_different: Of them, those that differ in the token or in what stands before it.
    """
    if not num_tokens or not num_different:
        return False
    deviation = ROOT_MEAN_SQUARE * noise
    return distance / num_tokens >= (DISTANCE * deviation) ** 2 / num_different


def spans(steps: Sequence[Sequence[float]]) -> Iterable[tuple[int, list[float]]]:
    """Yield the number and the column sums of the last 1, 2, 3, 4, 6, … of some steps."""
    for num_steps in SPANS:
        if num_steps > len(steps):
            return
        last = steps[-num_steps:]
        yield num_steps, [sum(column) for column in zip(*last, strict=True)]


def policy_score(steps: Sequence[Sequence[float]]) -> Score:
    """Return the strongest evidence that another policy sampled, of steps' `Comparison.evidence`.

    Over the last 1, 2, 3, 4, 6, … steps and on both sides.
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
    """Return S, V, and for each λ what −S costs; all of [tokens].

    Args:
        sampler: The sampler's logprobs.
        own: The trainer's.
        mean: Of the surprise of a token that the trainer's policy draws.
        variance: Of the same.
    """
    surprise = (-own).clamp(max=CEILING) - mean
    bounds = (mean * LARGEST_WEIGHT).clamp(min=1e-6)
    sums = [float((trust_weights(own, sampler) * surprise).sum()), float(variance.sum())]
    for rate in _SURPRISE_RATES:
        steepness = rate * bounds
        growth = (torch.expm1(steepness) - steepness) / bounds.square()
        # Its limit is exact to a millionth where the difference would lose all its digits.
        growth = torch.where(steepness < 1e-3, rate**2 / 2 * (1 + steepness / 3), growth)
        sums.append(float((variance * growth).sum()))
    return sums


NUM_SURPRISE_SUMS = 2 + len(_SURPRISE_RATES)
"""Numbers of `surprise_sums`."""


def surprise_score(steps: Sequence[Sequence[float]]) -> Score:
    """Return the strongest evidence that tokens were drawn from another distribution.

    Args:
        steps: Per step the number of dropped games and `surprise_sums`, see the module.
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
    """Return the step's equal episodes, and for each λ what as many would have to be worth.

    Two episodes of a group are equal where all tokens of all players are.

    Args:
        groups: As they were drawn.
        top_p: TOP_P. What passes it sums up to at least this, so a token is drawn with at most its
            probability in the whole distribution over `top_p`.

    Returns:
        Repeats, then Σ log(1 − Q + Q exp(λ)) for each λ, see the module.
    """
    num_repeats = 0
    prices = [0.0] * len(_REPEAT_RATES)
    log_top_p = math.log(top_p)
    for group in groups:
        probabilities: dict[object, float] = {}
        for episode in group:
            tokens = tuple((turn.player, turn.prompt_ids, turn.reply_ids) for turn in episode.turns)
            # More than 1 in all is rounding.
            expected = min(1.0, sum(probabilities.values()))
            for position, rate in enumerate(_REPEAT_RATES):
                prices[position] += math.log1p(expected * math.expm1(rate))
            num_repeats += tokens in probabilities
            logprob = 0.0
            for turn in episode.turns:
                logprob += sum(turn.logprobs)
                if top_p < 1:
                    # No token is likelier than certain.
                    logprob -= sum(max(log_top_p, own) for own in turn.logprobs)
            probabilities[tokens] = math.exp(min(0.0, logprob))
    return [float(num_repeats), *prices]


def repeat_score(steps: Sequence[Sequence[float]]) -> Score:
    """Return the strongest evidence that episodes are equal too often, of `count_repeats`."""
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
    """From which mean |trainer − sampler| on there is an incident, and a stop; nats a token."""

    incident: float
    stop: float
    median: float | None
    """Of the steps before; None: there are none."""


def gap_limits(earlier: Sequence[float], dtype: str, tolerance: float) -> GapLimits:
    """Return the limits of a step's gap.

    In the first step nothing is known but the tolerance, and in float32 that honest gaps are far
    below it (`FIRST_GAP`); in 16 bits models differ too much for that.

    Args:
        earlier: Gaps of the steps before.
        dtype: HANABI_DTYPE.
        tolerance: HANABI_PARITY_TOLERANCE, which no limit passes.
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
    """Add a step's numbers to the evidence under a key; returns all that are remembered there.

    What another version of this check has left under the key is forgotten.
    """
    steps = [step for step in evidence.get(key, []) if len(step) == len(value)]
    steps.append(list(value))
    evidence[key] = steps[-STEPS:]
    return evidence[key]


def copy_evidence(
    evidence: Mapping[str, Sequence[Sequence[float]]],
) -> dict[str, list[list[float]]]:
    """Return evidence that can be added to."""
    copied = {}
    for key, steps in evidence.items():
        copied[key] = [list(step) for step in steps]
    return copied
