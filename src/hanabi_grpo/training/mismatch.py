"""The mismatch check: is what was sampled, and what was reported, the policy that is trained?

It runs in every step before the optimizer moves, in every number format, and looks at

- **the gap**, the mean |trainer − sampler| of a player's tokens: against HANABI_PARITY_TOLERANCE
  on all of them, and against its own running median on a sample (`evidence.gap_limits`);
- **other policies**: is the sampler closer to the version before, another player's adapter, the
  base model, its own adapter scaled or another temperature, or as far on the other side, than to
  the policy that is trained (`evidence.compare`)?
- **what was sampled**: were the tokens drawn from the distribution that the sampler reports, of
  the tokens that TOP_P and TOP_K leave (`evidence.surprise_score`), and do episodes repeat more
  often than chance allows (`evidence.count_repeats`; not with TOP_K)?

`evidence` has the statistics and the bound of a false stop: below 1e-4 in 1,000 steps of five
players. The gap's limits are no statistics: they say that rounding does not grow sixfold from one
step to the next.

The sample is computed again in float32 (`check_sample`): in 16 bits rounding of t would draw slopes
to 1/2. Of each player one pass gives t and the law of surprises, and each suspect takes one: the
version before, the adapter × .99 (.9 in 16 bits), and the base model or another adapter in turn.
In float32 they are computed only where the gap gives a reason (`MismatchCheck._look`). A
temperature costs no pass: ∂ log p / ∂ log T is the surprise minus its mean.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.evidence import (
    CEILING,
    GAP_TOKENS,
    LIMIT,
    NUM_NUMBERS,
    NUM_SURPRISE_SUMS,
    WARNING,
    Comparison,
    GapLimits,
    Score,
    compare,
    copy_evidence,
    count_repeats,
    gap_limits,
    is_far_enough,
    policy_score,
    remember,
    repeat_score,
    surprise_score,
    surprise_sums,
)
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model.output_head import TokenLaw
from hanabi_grpo.training.policy import EarlierVersions, Policy
from hanabi_grpo.training.state import Evidence
from hanabi_grpo.types import Episode, adapter_of

STALE = "stale"
"""The suspect "the version before this one"."""
BASE = "base"
"""The suspect "the base model"."""
SCALED = "scaled"
"""The suspect "the own adapter × `SCALES`", and what lies beyond it."""
TEMPERATURE = "temperature"
"""The suspect "a temperature × `HEATS`", and what lies beyond it."""
SCALES = {"float32": 0.99, "bfloat16": 0.9, "float16": 0.9}
"""By number format: in 16 bits rounding hides less than that."""
HEATS = {"float32": 1.01, "bfloat16": 1.05, "float16": 1.05}
"""By number format, for the same reason."""
_NEXT_STEP = (
    "Nothing was updated in this step; restart the server, then the trainer, with RESUME at a "
    "checkpoint from before these steps."
)
FILTER_ROUNDING = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.25}
"""By number format, relative error of a probability within which TOP_P decides either way."""
FIRST_LOOKS = 3
"""Steps of a player in which suspects are computed in float32, too."""
LOOK_FACTOR = 1.5
"""Multiple of the running median of gaps from which on they are in float32."""
_EXPLAINED = 0.5
"""A suspect that leaves a larger share of the squared gap does not explain it."""
_NUM_OWN = 3 + NUM_SURPRISE_SUMS
"""Sums of a player before those of its comparisons, see `_Measured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGames:
    """A step's games, as the check looks at them; the same on every rank but for `samples`."""

    samples: Mapping[str, MicroBatch]
    """Per trained player this rank's part of `check_sample`."""
    groups: Sequence[Sequence[Episode]]
    """As they were drawn."""
    num_dropped: int
    """Games that were asked for and are not there."""
    version: int
    """Of the weights of now."""
    sampled_by: int
    """The version that the games should be of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One player's sums over all ranks."""

    gap: float
    """Σ |s − t|."""
    gap_squares: float
    """Σ (s − t)²."""
    num_tokens: float
    num_different: float
    """Tokens that differ, or have another context; the same ones on two ranks count once."""
    surprise: Sequence[float]
    """See `evidence.surprise_sums`."""
    comparisons: Mapping[str, Comparison]
    """By suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A player's [reply tokens] logprobs as the trainer computes them in the server's format."""

    own: torch.Tensor | None
    """Of the policy that should have sampled."""
    others: Mapping[str, torch.Tensor]
    """By suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """Something that is not as it should be."""

    kind: str
    """Of the incident."""
    player: str
    message: str
    stops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    """One rank's |trainer − sampler| over a micro-batch."""

    mean: float
    largest: float
    num_tokens: float
    trainer: float
    """Mean of the trainer's logprobs."""
    sampler: float
    """Mean of the sampler's."""

    @classmethod
    def of(cls, trainer: torch.Tensor, sampler: torch.Tensor) -> "_Gap":
        """Return it; 0 without tokens, and no number where the trainer has none."""
        if not len(trainer):
            return cls(mean=0.0, largest=0.0, num_tokens=0.0, trainer=0.0, sampler=0.0)
        gap = (trainer.float() - sampler).abs()
        return cls(
            mean=gap.mean().item() if bool(trainer.isfinite().all()) else math.nan,
            largest=gap.max().item(),
            num_tokens=float(len(trainer)),
            trainer=trainer.mean().item(),
            sampler=sampler.mean().item(),
        )

    @property
    def numbers(self) -> list[float]:
        return [self.mean, self.largest, self.num_tokens, self.trainer, self.sampler]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> "_Gap":
        mean, largest, num_tokens, trainer, sampler = numbers
        return cls(
            mean=mean, largest=largest, num_tokens=num_tokens, trainer=trainer, sampler=sampler
        )

    def is_too_large(self, tolerance: float) -> bool:
        """Tell whether it stops a run; what the trainer has no number for is left to the guard."""
        if math.isnan(self.trainer) or math.isinf(self.trainer):
            return False
        return not self.mean <= tolerance

    def message(self, player: str, version: int, tolerance: float, base: str) -> str:
        return (
            f"{_whose(player, version, base)}: trainer and sampler logprobs differ by "
            f"{self.mean:.3g} on average (max {self.largest:.3g}) over {self.num_tokens:.0f} "
            f"tokens; allowed is HANABI_PARITY_TOLERANCE={tolerance:g}. Trainer mean "
            f"{self.trainer:.4f}, sampler mean {self.sampler:.4f}. The server samples from another "
            "policy than the one trained here "
            "(a stale or swapped adapter, another base model or number format). Nothing was "
            "updated in this step; restart the server, then the trainer."
        )


class TokenGaps(NamedTuple):
    """|trainer − sampler| of a micro-batch's sampled tokens on all processes."""

    total: float
    """Sum over the tokens, in nats; not a number where the trainer's own forward pass is not: its
    gradient is then not finite either, and the update is dropped there."""
    num_tokens: float

    @property
    def mean(self) -> float:
        """In nats a token; 0 without tokens."""
        return self.total / self.num_tokens if self.num_tokens else 0.0


def check_mismatch(
    player: str,
    version: int,
    trainer: torch.Tensor,
    sampler: torch.Tensor,
    mask: torch.Tensor,
    *,
    tolerance: float,
    gather: Callable[[torch.Tensor], torch.Tensor] = lambda local: local,
    base: str = "",
) -> TokenGaps:
    """Return how far trainer and sampler are apart on a micro-batch's sampled tokens.

    All ranks hear all ranks' means before one raises: an exception on one of them alone would leave
    the others in a collective operation, waiting.

    Args:
        player: Whose micro-batch it is; a message names it.
        version: That the games should be of; a message names it.
        trainer: [rows, tokens] the trainer's logprobs.
        sampler: [rows, tokens] the sampler's.
        mask: [rows, tokens] True on sampled tokens.
        tolerance: HANABI_PARITY_TOLERANCE, the largest mean that is allowed.
        gather: Puts all ranks' [1, numbers] below each other.
        base: The player's base model, in a team of several.

    Raises:
        ParityError: On every rank, where the mean of one is above the tolerance, or not finite
            because of the sampler.
    """
    own = _Gap.of(trainer.detach()[mask], sampler[mask])
    local = torch.tensor([own.numbers], dtype=torch.float64, device=trainer.device)
    total = 0.0
    num_tokens = 0.0
    for numbers in gather(local).tolist():
        gap = _Gap.from_numbers(numbers)
        if gap.is_too_large(tolerance):
            raise ParityError(gap.message(player, version, tolerance, base))
        total += gap.mean * gap.num_tokens
        num_tokens += gap.num_tokens
    return TokenGaps(total, num_tokens)


def _whose(player: str, version: int, base: str) -> str:
    """Return whose games a message is of: "player_0@7", or "player_0@7 on Qwen/Qwen3-4B"."""
    return f"{player}@{version} on {base}" if base else f"{player}@{version}"


class MismatchCheck:
    """Looks, before a step's games are learned from, whether another policy has sampled them."""

    def __init__(
        self,
        policy: Policy,
        earlier: EarlierVersions,
        accelerator: Accelerator,
        *,
        tolerance: float,
        dtype: str,
        is_relative: bool,
        report: Callable[..., None],
    ) -> None:
        """Prepare.

        Args:
            policy: What is trained.
            earlier: Its earlier versions; at least one is kept where the check is relative.
            accelerator: Adds the processes' sums up.
            tolerance: HANABI_PARITY_TOLERANCE.
            dtype: HANABI_DTYPE.
            is_relative: Whether a sample is computed again, under other policies too; else there
                are the gap on all tokens and equal episodes alone.
            report: Called as report(kind, message, **details) for an incident.
        """
        self._policy = policy
        self._earlier = earlier
        self._accelerator = accelerator
        self._tolerance = tolerance
        self._dtype = dtype
        self.is_relative = is_relative
        self._report = report

    def check_gap(self, batch: MicroBatch, logprobs: torch.Tensor, version: int) -> TokenGaps:
        """Return how far trainer and sampler are apart on a micro-batch, see `check_mismatch`.

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
            gather=self._accelerator.gather,
            base=self._policy.base_name(batch.player),
        )

    def check_games(
        self, games: CheckedGames, before: Evidence
    ) -> tuple[Evidence, dict[str, float]]:
        """Ask whether another policy sampled a step's games; all ranks together.

        Args:
            games: The step's.
            before: The evidence of the steps before.

        Returns:
            The evidence with this step's, and metrics, e.g. "player_0/parity_slope".

        Raises:
            ParityError: On every rank: another policy did.
        """
        evidence = copy_evidence(before)
        metrics: dict[str, float] = {}
        findings: list[_Finding] = []
        if self.is_relative and games.samples:
            for player, measured in self._look(games, evidence).items():
                findings += self._judge(player, measured, games, evidence, metrics)
        findings += self._judge_repeats(games, evidence, metrics)
        # Findings are the same on every rank, for they come from sums over all of them.
        stops = [finding for finding in findings if finding.stops]
        for finding in findings:
            self._report(finding.kind, finding.message, player=finding.player, stops=finding.stops)
        if stops:
            first = stops[0]
            raise ParityError(f"{first.message}{self._likeliest(first.player, games)} {_NEXT_STEP}")
        return evidence, metrics

    def _whose(self, player: str, games: CheckedGames) -> str:
        return _whose(player, games.sampled_by, self._policy.base_name(player))

    # Measuring

    def _look(
        self, games: CheckedGames, evidence: Mapping[str, Sequence[Sequence[float]]]
    ) -> dict[str, _Measured]:
        """Return each player's sums, with comparisons to those who are suspected in this step.

        In 16 bits a fault drowns in the gap's noise, so they are always computed. In float32 it
        does not, and they are where a gap is larger than most, or most are not known yet; which
        sign the gap has decides nothing, so the statistics of `evidence` hold.
        """
        everybody = {player: self._suspects(player, games) for player in games.samples}
        if self._dtype != "float32":
            return self._measure(games, everybody)
        measured = self._measure(games, dict.fromkeys(games.samples, ()))
        suspicious = {}
        for player, sums in measured.items():
            gaps = [step[0] for step in evidence.get(f"{player}|gap", [])]
            is_known = len(gaps) >= FIRST_LOOKS
            if is_known and sums.gap <= LOOK_FACTOR * statistics.median(gaps) * sums.num_tokens:
                continue
            suspicious[player] = everybody[player]
        if suspicious:
            measured |= self._measure(games, suspicious)
        return measured

    def _suspects(self, player: str, games: CheckedGames) -> list[str]:
        """Return who is suspected in this step; the base model and other adapters in turn."""
        others = self._others(player)
        return [*self._nearby(games), others[games.version % len(others)]]

    def _nearby(self, games: CheckedGames) -> list[str]:
        if games.sampled_by - 1 in self._earlier.versions:
            return [STALE, SCALED]
        return [SCALED]

    def _others(self, player: str) -> list[str]:
        # Another base model's adapter cannot be on this one.
        own = adapter_of(player, self._policy.adapter_names)
        return [BASE, *(name for name in self._policy.on_same_base(player) if name != own)]

    def _measure(
        self, games: CheckedGames, suspects: Mapping[str, Sequence[str]]
    ) -> dict[str, _Measured]:
        """Return each player's sums over all ranks, with a comparison for each of its suspects.

        Args:
            games: The step's.
            suspects: By player, as many for each.
        """
        past: Any = contextlib.nullcontext()
        if games.sampled_by != games.version:
            past = self._earlier.using(games.sampled_by)
        sums = {}
        tokens: dict[str, set[int]] = {}
        with past:
            served = {
                player: self._served(player, games.samples[player], names, games)
                for player, names in suspects.items()
            }
            with self._policy.in_float32():
                for player, names in suspects.items():
                    batch = games.samples[player]
                    sums[player], tokens[player] = self._sums(
                        player, batch, names, games, served[player]
                    )
        num_different = _count_different(gather_object([tokens]))
        local = torch.tensor(
            list(sums.values()), dtype=torch.float64, device=self._accelerator.device
        )
        measured = {}
        for player, total in zip(sums, self._accelerator.reduce(local).tolist(), strict=True):
            comparisons = {}
            for number, suspect in enumerate([*suspects[player], TEMPERATURE]):
                start = _NUM_OWN + NUM_NUMBERS * number
                comparisons[suspect] = Comparison.of(total[start : start + NUM_NUMBERS])
            gap, gap_squares, num_tokens, *surprise = total[:_NUM_OWN]
            measured[player] = _Measured(
                gap=gap,
                gap_squares=gap_squares,
                num_tokens=num_tokens,
                num_different=float(num_different[player]),
                surprise=surprise,
                comparisons=comparisons,
            )
        return measured

    def _served(
        self, player: str, batch: MicroBatch, suspects: Sequence[str], games: CheckedGames
    ) -> _Served:
        """Return the logprobs of a player and its suspects in the server's number format.

        None where that is float32, or nobody is suspected.
        """
        if self._dtype == "float32" or not suspects:
            return _Served(own=None, others={})
        name = adapter_of(player, self._policy.adapter_names)
        compute = self._policy.served_logprobs
        others = {}
        for suspect in suspects:
            others[suspect] = self._logprobs(compute, batch, name, suspect, games)
        return _Served(own=compute(batch, name), others=others)

    def _sums(
        self,
        player: str,
        batch: MicroBatch,
        suspects: Sequence[str],
        games: CheckedGames,
        served: _Served,
    ) -> tuple[list[float], set[int]]:
        """Return this rank's sums of a player, and its different tokens (`_different_tokens`).

        The sums are `_NUM_OWN` of its own, then those of each suspect, then of heat. All are 0
        where the trainer's logprobs are not finite.
        """
        name = adapter_of(player, self._policy.adapter_names)
        law = self._policy.float32_law(batch, name, CEILING, FILTER_ROUNDING[self._dtype])
        sampler = batch.sampler_logprobs[batch.reply_mask].double()
        own = law.logprobs.double()
        if not bool(own.isfinite().all() & law.variance.isfinite().all()):
            return [0.0] * (_NUM_OWN + NUM_NUMBERS * (len(suspects) + 1)), set()
        gap = sampler - own
        mean = law.mean.double()
        sums = [
            float(gap.abs().sum()),
            float(gap.square().sum()),
            float(len(gap)),
            *_surprise_sums(sampler, law),
        ]
        for suspect in suspects:
            other = self._logprobs(self._policy.float32_logprobs, batch, name, suspect, games)
            served_other = served.others.get(suspect)
            sums += compare(sampler, own, other, served.own, served_other).numbers
        # A token that is more likely than most grows rarer in the heat.
        hotter = own + (HEATS[self._dtype] - 1) * ((-own).clamp(max=CEILING) - mean)
        sums += compare(sampler, own, hotter, served.own).numbers
        return sums, _different_tokens(own, batch)

    def _logprobs(
        self,
        compute: Callable[..., torch.Tensor],
        batch: MicroBatch,
        name: str,
        suspect: str,
        games: CheckedGames,
    ) -> torch.Tensor:
        """Return the [reply tokens] logprobs of a suspect.

        Args:
            compute: Called as compute(batch, adapter) or compute(batch, adapter, scale).
            batch: The micro-batch.
            name: The adapter that should have sampled.
            suspect: Who is suspected.
            games: The step's.
        """
        if suspect == STALE:
            with self._earlier.using(games.sampled_by - 1):
                return compute(batch, name)
        if suspect == SCALED:
            return compute(batch, name, SCALES[self._dtype])
        return compute(batch, None if suspect == BASE else suspect)

    # Judging

    def _judge(
        self,
        player: str,
        measured: _Measured,
        games: CheckedGames,
        evidence: dict[str, list[list[float]]],
        metrics: dict[str, float],
    ) -> list[_Finding]:
        """Return what is wrong with a player's games; adds to evidence and metrics."""
        findings = self._judge_gap(player, measured, games, evidence)
        policies = self._judge_policies(player, measured, games, evidence, metrics)
        # The one that leaves the least unexplained says it for all.
        policies.sort(key=lambda finding: not finding.stops)
        findings += policies[:1]
        findings += self._judge_surprise(player, measured, games, evidence, metrics)
        return findings

    def _judge_gap(
        self,
        player: str,
        measured: _Measured,
        games: CheckedGames,
        evidence: dict[str, list[list[float]]],
    ) -> list[_Finding]:
        num_tokens = measured.num_tokens
        if not num_tokens:
            return []
        gap = measured.gap / num_tokens
        key = f"{player}|gap"
        earlier = [step[0] for step in evidence.get(key, [])]
        limits = GapLimits(incident=self._tolerance, stop=self._tolerance, median=None)
        if num_tokens >= GAP_TOKENS:
            limits = gap_limits(earlier, self._dtype, self._tolerance)
            remember(evidence, key, [gap])
        if gap <= limits.incident:
            return []
        message = (
            f"{self._whose(player, games)}: trainer and sampler logprobs differ by {gap:.3g} on "
            f"average over {num_tokens:.0f} tokens; {_gap_rule(limits, len(earlier))}."
        )
        is_stop = gap > limits.stop
        return [_Finding(kind="mismatch_rose", player=player, message=message, stops=is_stop)]

    def _judge_policies(
        self,
        player: str,
        measured: _Measured,
        games: CheckedGames,
        evidence: dict[str, list[list[float]]],
        metrics: dict[str, float],
    ) -> list[_Finding]:
        """Return suspicions, the one that explains the step's gap best first."""
        findings: list[tuple[float, _Finding]] = []
        num_tokens = measured.num_tokens
        if not num_tokens:
            return []
        gaps = [step[0] for step in evidence.get(f"{player}|gap", [])]
        noise = statistics.median(gaps) if gaps else measured.gap / num_tokens
        for suspect, comparison in measured.comparisons.items():
            if not comparison.distance or not is_far_enough(
                comparison.distance,
                noise,
                num_tokens=num_tokens,
                num_different=measured.num_different,
            ):
                continue
            if suspect == STALE and self._dtype != "float32":
                metrics[f"{player}/update_kept"] = comparison.kept_share
            if not comparison.survives_rounding:
                continue
            metrics.update(self._metrics(player, suspect, comparison))
            numbers = comparison.evidence(num_tokens / measured.num_different)
            steps = remember(evidence, f"{player}|{suspect}", numbers)
            score = policy_score(steps)
            if score.z <= WARNING:
                continue
            finding = _Finding(
                kind="mismatch_policy",
                player=player,
                message=self._policy_message(player, suspect, comparison, score, measured, games),
                stops=score.z > LIMIT,
            )
            findings.append((_unexplained(suspect, comparison, measured), finding))
        findings.sort(key=lambda pair: pair[0])
        return [finding for _, finding in findings]

    def _judge_surprise(
        self,
        player: str,
        measured: _Measured,
        games: CheckedGames,
        evidence: dict[str, list[list[float]]],
        metrics: dict[str, float],
    ) -> list[_Finding]:
        total, variance = measured.surprise[:2]
        if not variance > 0:
            return []
        metrics[f"{player}/parity_surprise"] = total / variance**0.5
        sums = [float(games.num_dropped), *measured.surprise]
        score = surprise_score(remember(evidence, f"{player}|surprise", sums))
        if score.z <= WARNING:
            return []
        by = total / measured.num_tokens
        seen, cause = "less", "a lower temperature, top-p, top-k, min-p or greedy sampling"
        if score.sign > 0:
            seen, cause = "more", "a higher temperature, or a logits processor"
        message = (
            f"{self._whose(player, games)}: the sampled tokens are {seen} surprising than the "
            f"logprobs that came with them say, by {abs(by):.3g} nats a token in this step; that "
            f"is {score.z:.1f} standard errors over {score.num_steps} step(s), allowed are "
            f"{LIMIT:g}. The server reports this policy and samples from another: {cause}."
        )
        is_stop = score.z > LIMIT
        return [_Finding(kind="mismatch_sampled", player=player, message=message, stops=is_stop)]

    def _judge_repeats(
        self,
        games: CheckedGames,
        evidence: dict[str, list[list[float]]],
        metrics: dict[str, float],
    ) -> list[_Finding]:
        token_filter = self._policy.token_filter
        counts = count_repeats(games.groups, token_filter.top_p)
        num_episodes = sum(len(group) for group in games.groups)
        if not num_episodes:
            return []
        metrics["repeated_episode_share"] = counts[0] / num_episodes
        if token_filter.top_k:
            # How likely an equal episode is depends on what the other tokens are worth.
            return []
        score = repeat_score(remember(evidence, "episodes|repeats", counts))
        if score.z <= WARNING:
            return []
        message = (
            f"version {games.sampled_by}: {counts[0]:.0f} of {num_episodes} episodes are token by "
            f"token equal to an earlier one of their group; their own logprobs make that "
            f"{score.z:.1f} standard errors over {score.num_steps} step(s), allowed are {LIMIT:g}. "
            "The server draws the same random numbers again (a fixed seed for every request), or "
            "from a sharper distribution than it reports."
        )
        is_stop = score.z > LIMIT
        return [_Finding(kind="mismatch_repeated", player="", message=message, stops=is_stop)]

    def _likeliest(self, player: str, games: CheckedGames) -> str:
        """Return a sentence on the suspect that explains a step's gap best, of all of them."""
        if not self.is_relative or player not in games.samples:
            return ""
        suspects = [*self._nearby(games), *self._others(player)]
        measured = self._measure(games, {player: suspects})[player]
        best = None
        least = _EXPLAINED * measured.gap_squares
        for suspect, comparison in measured.comparisons.items():
            unexplained = _unexplained(suspect, comparison, measured)
            if comparison.distance and unexplained < least:
                least = unexplained
                best = suspect
        if best is None:
            return (
                " No suspect explains this step's logprobs (the version before, another adapter, "
                "the base model, a scale, a temperature)."
            )
        name = self._describe(best, measured.comparisons[best], games.sampled_by)
        share = 1 - least / measured.gap_squares
        return f" Likeliest: {name}, which explains {share:.0%} of the squared gap."

    def _metrics(self, player: str, suspect: str, comparison: Comparison) -> dict[str, float]:
        """Return what version, scale and temperature look like; 0, 1 and 1 are right."""
        if suspect == STALE:
            return {f"{player}/parity_slope": comparison.slope}
        if suspect == SCALED:
            return {f"{player}/parity_scale": 1 + (SCALES[self._dtype] - 1) * comparison.slope}
        if suspect == TEMPERATURE:
            return {f"{player}/parity_temperature": 1 + (HEATS[self._dtype] - 1) * comparison.slope}
        return {}

    def _describe(self, suspect: str, comparison: Comparison, version: int) -> str:
        """Return what a suspect is called."""
        if suspect == STALE:
            return f"version {version - 1} of its adapter"
        if suspect == BASE:
            return "the base model without an adapter"
        if suspect == SCALED:
            return f"its own adapter times {1 + (SCALES[self._dtype] - 1) * comparison.slope:.3g}"
        if suspect == TEMPERATURE:
            heat = 1 + (HEATS[self._dtype] - 1) * comparison.slope
            return f"its own adapter at {heat:.3g} times TEMPERATURE"
        return f"adapter {suspect}"

    def _policy_message(
        self,
        player: str,
        suspect: str,
        comparison: Comparison,
        score: Score,
        measured: _Measured,
        games: CheckedGames,
    ) -> str:
        name = self._describe(suspect, comparison, games.sampled_by)
        verdict = f"the sampler's logprobs are closer to those of {name} than to this version's"
        fault = _FAULTS.get(suspect, "a swapped adapter")
        if score.sign < 0 and suspect not in (SCALED, TEMPERATURE):
            verdict = (
                f"the sampler's logprobs are not this version's, and still less those of {name}"
            )
            fault = "another policy"
        return (
            f"{self._whose(player, games)}: {verdict}, by {score.z:.1f} standard errors over "
            f"{score.num_steps} step(s); allowed are {LIMIT:g}. Slope {comparison.slope:.2f} over "
            f"{measured.num_tokens:.0f} tokens of this step, where 0 is right and 1 is "
            f"{self._unit(suspect)}. The server samples {fault}."
        )

    def _unit(self, suspect: str) -> str:
        if suspect == SCALED:
            return f"its own adapter times {SCALES[self._dtype]:g}"
        if suspect == TEMPERATURE:
            return f"{HEATS[self._dtype]:g} times TEMPERATURE"
        return "the other policy"


def _gap_rule(limits: GapLimits, num_steps: int) -> str:
    """Return what a gap is compared with, in words."""
    if limits.stop == limits.incident:
        return f"allowed is HANABI_PARITY_TOLERANCE={limits.stop:g}"
    if limits.median is None:
        return (
            f"in a first step above {limits.incident:.3g} is an incident, and above "
            f"{limits.stop:.3g} (HANABI_PARITY_TOLERANCE) a stop"
        )
    return (
        f"the median of the last {num_steps} step(s) is {limits.median:.3g}, above "
        f"{limits.incident:.3g} is an incident and above {limits.stop:.3g} a stop. Was the server "
        "replaced, or its version or settings changed"
    )


def _unexplained(suspect: str, comparison: Comparison, measured: _Measured) -> float:
    """Return the squared gap that is left where the suspect sampled."""
    if not comparison.distance:
        return math.inf
    if suspect in (SCALED, TEMPERATURE):
        explained = comparison.product**2 / comparison.distance
        return max(0.0, measured.gap_squares - explained)
    return comparison.residual


def _different_tokens(own: torch.Tensor, batch: MicroBatch) -> set[int]:
    """Return a number for each of a player's tokens that differ, the same on every rank.

    The same token in the same context has the same logprob, and others hardly ever, so of equal
    logprobs the first stands for all. Its number is a hash of its id and of all ids before it,
    because another rank may round its logprob otherwise.

    Args:
        own: [reply tokens] the trainer's logprobs.
        batch: The micro-batch that they are of.
    """
    numbers: list[int] = []
    for ids, mask in zip(batch.ids.tolist(), batch.reply_mask.tolist(), strict=True):
        number = hash(ids[0])
        for token, is_reply in zip(ids[1:], mask, strict=True):
            number = hash((number, token))
            if is_reply:
                numbers.append(number)
    first_of: dict[float, int] = {}
    for logprob, number in zip(own.tolist(), numbers, strict=True):
        first_of.setdefault(logprob, number)
    return set(first_of.values())


def _count_different(of_ranks: Sequence[Mapping[str, set[int]]]) -> dict[str, int]:
    """Return how many different tokens each player has on all ranks together."""
    counts = {}
    for player in of_ranks[0]:
        counts[player] = len(set().union(*(tokens[player] for tokens in of_ranks)))
    return counts


def _surprise_sums(sampler: torch.Tensor, law: TokenLaw) -> list[float]:
    """Return `surprise_sums` of a player's [reply tokens].

    With TOP_P or TOP_K what tokens are drawn from is the filtered law, at the places where it is
    known; which these are does not depend on the token that was drawn there.
    """
    own = law.logprobs.double()
    drawn = law.drawn
    if drawn is None:
        return surprise_sums(sampler, own, law.mean.double(), law.variance.double())
    sure = drawn.is_sure
    return surprise_sums(
        sampler[sure], own[sure], drawn.mean[sure].double(), drawn.variance[sure].double()
    )


_FAULTS = {
    STALE: "a stale adapter",
    BASE: "without its adapter",
    SCALED: "an adapter that was scaled, or not loaded as a whole",
    TEMPERATURE: "at another temperature, or with another filter of tokens",
}
"""What the server samples, by suspect."""
