"""The logprob-mismatch checks: proof, in every step, that the sampled policy is the trained one.

Both run before the optimizer. The absolute one takes the trainer's values from the forward pass
that the loss needs anyway; games of an earlier version need one more, under its weights
(`overlap`).

The relative one is for number formats of 16 bits: is the sampler closer to another policy than to
its own? There two programs differ by .03 to .05 nats a token, and a step at rate 2e-5 moves
logprobs by .005 to .014: an absolute tolerance cannot see an adapter that is one step old. With the
logprobs s of the sampler, t of the version that should have sampled and o of another policy (the
version before, another player's adapter, the base model),

    b = Σ (s − t)(o − t) / Σ (o − t)² = 1/2 + Σ x / Σ d²,   d = o − t,   x = d · (s − (t + o) / 2)

is 0 where t sampled and 1 where o did. t and o are computed in float32 from the weights as the
server has them, since rounding of t would draw b to 1/2. A run is stopped when, over the last 1, 2,
4, … or 64 steps,

    z = Σ x / sqrt(Σ (sum of x over a block of tokens)²) > LIMIT.

Σ x has the mean −Σ d² / 2 where t sampled. For blocks that are independent and as likely negative
as positive z passes h with a probability of at most exp(−h²/2), however they are distributed (Efron
1969, "Student's t-test under symmetry conditions"). At 6.5 that is 7e-10 for one z; five players
have 70,000 in 1,000 steps: 5e-5 a run, even where two versions are so close that x is noise alone.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model.prefix_tree import prefix_tree
from hanabi_grpo.training.policy import EarlierVersions, Policy
from hanabi_grpo.training.state import Evidence
from hanabi_grpo.types import adapter_of

TOKENS = 3072
"""A player's reply tokens of a step, over all processes, that are computed under other policies."""
BLOCK = 32
"""Tokens of a block: neighbours share what rounding did to their context."""
LIMIT = 6.5
"""Standard errors above which the sampler counts as another policy."""
STEPS = 64
"""Steps of evidence that are remembered."""
GAP_FACTOR = 3.0
"""Multiple of the running median from which on a step's gap is an incident."""
GAP_STEPS = 16
"""Steps that the running median needs."""
GAP_TOKENS = 256
"""Tokens that a step's gap needs."""
STALE = "stale"
"""The suspect "the version before this one"."""
BASE = "base"
"""The suspect "the base model"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a sampler's logprobs lie between those of its own policy and another one."""

    evidence: float
    """Σ x, see the module; positive where the other policy is closer."""
    squares: float
    """Sum over blocks of the squared sum of x."""
    distance: float
    """Σ d², how far the two policies are apart."""

    @property
    def slope(self) -> float:
        """0 where the own policy sampled and 1 where the other one did."""
        return 0.5 + self.evidence / self.distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The strongest evidence against a policy."""

    z: float
    """Standard errors by which the sampler is closer to the suspect."""
    num_steps: int
    """Steps that it is taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A suspect that passed the limit."""

    suspect: str
    score: Score
    slope: float


def check_mismatch(
    player: str,
    version: int,
    trainer: torch.Tensor,
    sampler: torch.Tensor,
    mask: torch.Tensor,
    *,
    tolerance: float,
) -> float:
    """Return the mean |trainer − sampler| over a micro-batch's sampled tokens, in nats.

    Args:
        player: Whose micro-batch it is; a message names it.
        version: That the games should be of; a message names it.
        trainer: [rows, tokens] the trainer's logprobs.
        sampler: [rows, tokens] the sampler's.
        mask: [rows, tokens] True on sampled tokens.
        tolerance: HANABI_PARITY_TOLERANCE, the largest mean that is allowed.

    Returns:
        The mean; 0 without tokens, and not a number where the trainer's own forward pass is not:
        its gradient is then not finite either, and the update is dropped there.

    Raises:
        ParityError: The mean is above the tolerance, or not finite because of the sampler.
    """
    if not bool(mask.any()):
        return 0.0
    trainer = trainer.detach()
    gap = (trainer.float() - sampler)[mask].abs()
    mean = gap.mean().item()
    if not bool(trainer[mask].isfinite().all()):
        return math.nan
    if not math.isfinite(mean) or mean > tolerance:
        raise ParityError(
            f"{player}@{version}: trainer and sampler logprobs differ by {mean:.3g} on average "
            f"(max {gap.max().item():.3g}) over {gap.numel()} tokens; allowed is "
            f"HANABI_PARITY_TOLERANCE={tolerance:g}. Trainer mean "
            f"{trainer[mask].mean().item():.4f}, sampler mean {sampler[mask].mean().item():.4f}. "
            "The server samples from another policy than the one trained here (a stale or swapped "
            "adapter, another base model or number format). Nothing was updated in this step; "
            "restart the server, then the trainer."
        )
    return mean


def compare(sampler: torch.Tensor, own: torch.Tensor, other: torch.Tensor) -> Comparison:
    """Return how [tokens] logprobs of the sampler lie between those of two policies.

    All sums are 0 where a logprob is not finite.
    """
    s = sampler.double()
    t = own.double()
    o = other.double()
    d = o - t
    x = d * (s - (t + o) / 2)
    if not bool(x.isfinite().all()):
        return Comparison(evidence=0.0, squares=0.0, distance=0.0)
    blocks = torch.nn.functional.pad(x, (0, -len(x) % BLOCK)).view(-1, BLOCK).sum(1)
    return Comparison(
        evidence=float(x.sum()),
        squares=float(blocks.square().sum()),
        distance=float(d.square().sum()),
    )


def strongest(steps: Sequence[Sequence[float]]) -> Score:
    """Return the largest z over the last 1, 2, 4, … of some steps' [Σ x, Σ block sums²]."""
    best = Score(z=0.0, num_steps=0)
    for power in range(STEPS.bit_length()):
        last = steps[-(2**power) :]
        squares = sum(step[1] for step in last)
        if not squares or len(last) < 2**power:
            continue
        z = sum(step[0] for step in last) / squares**0.5
        if (z, len(last)) > (best.z, best.num_steps):
            best = Score(z=z, num_steps=len(last))
    return best


def sample_of(batch: MicroBatch, limit: int, first: int) -> MicroBatch:
    """Return rows of a micro-batch, from row number `first` on, with about `limit` reply tokens.

    A single row that is longer is cut behind so many replies.
    """

    def from_first(column: torch.Tensor) -> torch.Tensor:
        return column.roll(-(first % len(column)), 0)

    ids = from_first(batch.ids)
    mask = from_first(batch.reply_mask)
    sampler = from_first(batch.sampler_logprobs)
    num_rows = max(1, int((mask.sum(1).cumsum(0) <= limit).sum()))
    seen = mask[:num_rows].sum(0).cumsum(0)
    width = int((seen < min(limit, int(seen[-1]))).sum()) + 1
    ids = ids[:num_rows, : width + 1]
    mask = mask[:num_rows, :width]
    return replace(
        batch,
        ids=ids,
        reply_mask=mask,
        sampler_logprobs=sampler[:num_rows, :width],
        tree=prefix_tree(ids, mask) if batch.tree is not None else None,
    )


class MismatchCheck:
    """Looks, before a step's games are learned from, whether another policy has sampled them."""

    def __init__(
        self,
        policy: Policy,
        earlier: EarlierVersions,
        accelerator: Accelerator,
        *,
        tolerance: float,
        is_relative: bool,
        report: Callable[..., None],
    ) -> None:
        """Prepare.

        Args:
            policy: What is trained.
            earlier: Its earlier versions; at least one is kept where the check is relative.
            accelerator: Adds the processes' sums up.
            tolerance: HANABI_PARITY_TOLERANCE, of the absolute check.
            is_relative: Whether the relative check runs, too: in a number format of 16 bits, with
                whole adapters.
            report: Called as report(kind, message, **details) for an incident.
        """
        self._policy = policy
        self._earlier = earlier
        self._accelerator = accelerator
        self._tolerance = tolerance
        self.is_relative = is_relative
        self._report = report

    def check_gap(self, batch: MicroBatch, logprobs: torch.Tensor, version: int) -> float:
        """Return the mean |trainer − sampler| of a micro-batch in nats, see `check_mismatch`.

        Args:
            batch: The micro-batch.
            logprobs: [rows, tokens] the trainer's, under the version that should have sampled.
            version: That version.
        """
        return check_mismatch(
            batch.player,
            version,
            logprobs,
            batch.sampler_logprobs,
            batch.reply_mask,
            tolerance=self._tolerance,
        )

    def compare_policies(
        self, batches: Sequence[MicroBatch], *, version: int, sampled_by: int, before: Evidence
    ) -> tuple[Evidence, dict[str, float]]:
        """Compare a sample of a step's games with other policies; all ranks together.

        Args:
            batches: All micro-batches of this rank.
            version: Of the weights of now.
            sampled_by: The version that the games should be of.
            before: The evidence of the steps before.

        Returns:
            The evidence with this step's, and metrics ("player_0/parity_slope").

        Raises:
            ParityError: The games are of another policy.
        """
        by_player: dict[str, list[MicroBatch]] = {}
        for batch in batches:
            by_player.setdefault(batch.player, []).append(batch)
        limit = max(1, TOKENS // self._accelerator.num_processes)
        sample = {}
        suspects = {}
        for player, player_batches in by_player.items():
            chosen = player_batches[version % len(player_batches)]
            sample[player] = sample_of(chosen, limit, version)
            suspects[player] = self._suspect(player, version)
        figures = self._measure(sample, suspects, version, sampled_by)
        device = self._accelerator.device
        local_sums = torch.tensor(figures, dtype=torch.float64, device=device)
        totals = self._accelerator.reduce(local_sums).tolist()
        evidence = {}
        for key, steps in before.items():
            evidence[key] = [list(step) for step in steps]
        metrics: dict[str, float] = {}
        for player, sums in zip(sample, totals, strict=True):
            metrics |= self._judge(player, suspects[player], sums, evidence, sampled_by)
        return evidence, metrics

    def _suspect(self, player: str, version: int) -> str:
        """Return who is looked at beside the version before: another one in each step."""
        names = self._policy.adapter_names
        own = adapter_of(player, names)
        others = [BASE, *(name for name in names if name != own)]
        return others[version % len(others)]

    def _measure(
        self,
        sample: Mapping[str, MicroBatch],
        suspects: Mapping[str, str],
        version: int,
        sampled_by: int,
    ) -> list[list[float]]:
        """Return per player 8 sums: Σ|s − t|, tokens, and the two `Comparison`s, stale first."""
        names = {player: adapter_of(player, self._policy.adapter_names) for player in sample}

        def logprobs(player: str, adapter: str) -> torch.Tensor:
            name = None if adapter == BASE else adapter
            return self._policy.float32_logprobs(sample[player], name)

        past: Any = contextlib.nullcontext()
        if sampled_by != version:
            past = self._earlier.using(sampled_by)
        with past, self._policy.in_float32():
            own = {player: logprobs(player, names[player]) for player in sample}
            other = {player: logprobs(player, suspects[player]) for player in sample}
            stale = own
            if sampled_by - 1 in self._earlier.versions:
                with self._earlier.using(sampled_by - 1):
                    stale = {player: logprobs(player, names[player]) for player in sample}
        figures = []
        for player, batch in sample.items():
            sampler = batch.sampler_logprobs[batch.reply_mask]
            gap = float((sampler - own[player]).abs().nansum())
            sums = [gap, float(len(sampler))]
            for suspect in (stale, other):
                comparison = compare(sampler, own[player], suspect[player])
                sums += [comparison.evidence, comparison.squares, comparison.distance]
            figures.append(sums)
        return figures

    def _judge(
        self,
        player: str,
        suspect: str,
        sums: Sequence[float],
        evidence: dict[str, list[list[float]]],
        version: int,
    ) -> dict[str, float]:
        """Add one player's sums to the evidence; returns metrics, or raises a ParityError."""
        gap, num_tokens = sums[0], sums[1]
        comparisons = {
            STALE: Comparison(evidence=sums[2], squares=sums[3], distance=sums[4]),
            suspect: Comparison(evidence=sums[5], squares=sums[6], distance=sums[7]),
        }
        metrics: dict[str, float] = {}
        suspicions: list[Suspicion] = []
        for name, comparison in comparisons.items():
            if not comparison.squares:
                continue
            if name == STALE:
                metrics[f"{player}/parity_slope"] = comparison.slope
            steps = _remember(
                evidence, f"{player}|{name}", [comparison.evidence, comparison.squares]
            )
            score = strongest(steps)
            if score.z > LIMIT:
                suspicions.append(Suspicion(suspect=name, score=score, slope=comparison.slope))
        if suspicions:
            closest = min(suspicions, key=lambda suspicion: abs(suspicion.slope - 1))
            raise ParityError(_message(player, closest, version, num_tokens))
        if num_tokens >= GAP_TOKENS:
            self._watch_gap(player, gap / num_tokens, num_tokens, evidence, version)
        return metrics

    def _watch_gap(
        self,
        player: str,
        gap: float,
        num_tokens: float,
        evidence: dict[str, list[list[float]]],
        version: int,
    ) -> None:
        """Report a gap that is far above the running median of the steps before."""
        key = f"{player}|gap"
        earlier_gaps = [step[0] for step in evidence.get(key, [])]
        _remember(evidence, key, [gap])
        if len(earlier_gaps) < GAP_STEPS:
            return
        median = statistics.median(earlier_gaps)
        if gap > GAP_FACTOR * median:
            self._report(
                "mismatch_rose",
                f"{player}@{version}: trainer and sampler logprobs differ by {gap:.3g} on average "
                f"over {num_tokens:.0f} tokens, {GAP_FACTOR:g} times the median of the last "
                f"{len(earlier_gaps)} steps or more ({median:.3g}). Was the server replaced, or "
                "its version or settings changed?",
                player=player,
                gap=gap,
            )


def _remember(
    evidence: dict[str, list[list[float]]], key: str, value: list[float]
) -> list[list[float]]:
    steps = [*evidence.get(key, []), value]
    evidence[key] = steps[-STEPS:]
    return evidence[key]


def _message(player: str, suspicion: Suspicion, version: int, num_tokens: float) -> str:
    suspect = suspicion.suspect
    other_policy = f"adapter {suspect}"
    fault = "a swapped adapter"
    if suspect == STALE:
        other_policy = f"version {version - 1} of its adapter"
        fault = "a stale adapter"
    elif suspect == BASE:
        other_policy = "the base model without an adapter"
        fault = "without its adapter"
    return (
        f"{player}@{version}: the sampler's logprobs are closer to those of {other_policy} than to "
        f"this version's, by {suspicion.score.z:.1f} standard errors over "
        f"{suspicion.score.num_steps} step(s); allowed are {LIMIT:g}. Slope {suspicion.slope:.2f} "
        f"over {num_tokens:.0f} tokens of this step, where 0 is right and 1 is the other policy. "
        f"The server samples {fault}. Nothing was updated in this step; restart the server, then "
        "the trainer, with RESUME at a checkpoint from before these steps."
    )
