"""The mismatch check: did the policy that is trained sample the tokens and report their logprobs?

It runs in every step before the first optimizer update, in every number format, and checks

- **the gap**, the mean |trainer − sampler| of a player's tokens: against HANABI_PARITY_TOLERANCE
  on all tokens, and against its own running median on a sample (`evidence.gap_limits`);
- **other policies**: are the sampler's logprobs closer to those of a suspect than to those of the
  trained policy, or equally far off on the opposite side (`evidence.compare`)? Suspects are the
  previous version, another player's adapter, the base model, the own adapter scaled, and another
  temperature;
- **the sampled tokens**: were they drawn from the distribution that the sampler reports, restricted
  by TOP_P and TOP_K (`evidence.surprise_score`), and do episodes repeat more often than chance
  allows (`evidence.count_repeats`; not with TOP_K)?

`evidence` has the statistics and the bound on the false stop rate: below 1e-4 in 1,000 steps with
five players. The limits of the gap are not statistical: they assume that rounding errors do not
grow sixfold from one step to the next.

The sample (`check_sample`) is computed again in float32, because in 16 bits the rounding of t would
pull slopes to 1/2. For each player, one pass gives t and the distribution of surprises, and each
suspect takes one more pass: the previous version, the adapter × .99 (.9 in 16 bits), and the base
model or another adapter in turn. In float32, suspects are computed only if the gap gives a reason
(`MismatchCheck._look`). A temperature needs no pass: ∂ log p / ∂ log T is the surprise minus its
mean.
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
"""The suspect "the previous version"."""
BASE = "base"
"""The suspect "the base model"."""
SCALED = "scaled"
"""The suspect "the own adapter × `SCALES`", or scaled further in that direction."""
TEMPERATURE = "temperature"
"""The suspect "a temperature × `HEATS`", or further in that direction."""
SCALES = {"float32": 0.99, "bfloat16": 0.9, "float16": 0.9}
"""Factor by number format: in 16 bits rounding hides smaller changes."""
HEATS = {"float32": 1.01, "bfloat16": 1.05, "float16": 1.05}
"""Factor by number format: in 16 bits rounding hides smaller changes."""
_NEXT_STEP = (
    "Nothing was updated in this step; restart the server, then restart the trainer with RESUME "
    "set to a checkpoint from before these steps."
)
FILTER_ROUNDING = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.25}
"""By number format, the relative error of a probability within which TOP_P may decide either way.
"""
FIRST_LOOKS = 3
"""Number of a player's first steps in which suspects are always computed in float32."""
LOOK_FACTOR = 1.5
"""Multiple of the running median of gaps above which suspects are computed in float32."""
_EXPLAINED = 0.5
"""A suspect that leaves a larger share of the squared gap does not explain it."""
_NUM_OWN = 3 + NUM_SURPRISE_SUMS
"""Number of a player's own sums, which come before those of its comparisons, see `_Measured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGames:
    """A step's games for the check; the same on every rank, except for `samples`."""

    samples: Mapping[str, MicroBatch]
    """Per trained player, this rank's part of `check_sample`."""
    groups: Sequence[Sequence[Episode]]
    """Groups as they were drawn."""
    num_dropped: int
    """Number of requested games that are missing."""
    version: int
    """Version of the current weights."""
    sampled_by: int
    """The version that should have sampled the games."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One player's sums over all ranks."""

    gap: float
    """Σ |s − t|."""
    gap_squares: float
    """Σ (s − t)²."""
    num_tokens: float
    num_different: float
    """Number of different tokens, or contexts; the same token on two ranks counts once."""
    surprise: Sequence[float]
    """See `evidence.surprise_sums`."""
    comparisons: Mapping[str, Comparison]
    """Comparisons by suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A player's [reply tokens] logprobs as the trainer computes them in the server's format."""

    own: torch.Tensor | None
    """Logprobs of the policy that should have sampled."""
    others: Mapping[str, torch.Tensor]
    """Logprobs by suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """A problem that the check has found."""

    kind: str
    """Kind of the incident."""
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
        """Return the gap; 0 without tokens, NaN if a trainer logprob is not finite."""
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
        """Tell whether the gap stops the run; the guard handles a trainer mean of NaN or inf."""
        if math.isnan(self.trainer) or math.isinf(self.trainer):
            return False
        return not self.mean <= tolerance

    def message(self, player: str, version: int, tolerance: float, base: str) -> str:
        return (
            f"{_whose(player, version, base)}: trainer and sampler logprobs differ by "
            f"{self.mean:.3g} on average (max {self.largest:.3g}) over {self.num_tokens:.0f} "
            f"tokens (allowed: HANABI_PARITY_TOLERANCE={tolerance:g}). Trainer mean "
            f"{self.trainer:.4f}, sampler mean {self.sampler:.4f}. The server samples from a "
            "different policy than the one trained here "
            "(a stale or swapped adapter, another base model or number format). Nothing was "
            "updated in this step; restart the server, then the trainer."
        )


class TokenGaps(NamedTuple):
    """|trainer − sampler| of a micro-batch's sampled tokens on all processes."""

    total: float
    """Sum over the tokens, in nats; NaN if the trainer's own forward pass is not finite. Then its
    gradient is not finite either, and the update is dropped."""
    num_tokens: float

    @property
    def mean(self) -> float:
        """Mean in nats per token; 0 without tokens."""
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
    """Return the gap between trainer and sampler on a micro-batch's sampled tokens.

    All ranks exchange their means before any of them raises: an exception on only one rank would
    leave the others waiting in a collective operation.

    Args:
        player: The micro-batch's player, for messages.
        version: The version that should have sampled the games, for messages.
        trainer: [rows, tokens] the trainer's logprobs.
        sampler: [rows, tokens] the sampler's logprobs.
        mask: [rows, tokens] True on sampled tokens.
        tolerance: HANABI_PARITY_TOLERANCE, the largest allowed mean.
        gather: Concatenates all ranks' [1, numbers] along the first dimension.
        base: The player's base model, if the team has several.

    Raises:
        ParityError: On every rank, if the mean of any rank is above the tolerance, or not finite
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
    """Return the subject of a message: "player_0@7", or "player_0@7 on Qwen/Qwen3-4B"."""
    return f"{player}@{version} on {base}" if base else f"{player}@{version}"


class MismatchCheck:
    """Checks, before a step's games are trained on, whether another policy sampled them."""

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
            policy: The trained policy.
            earlier: Its earlier versions; at least one is kept if the check is relative.
            accelerator: Sums over the processes.
            tolerance: HANABI_PARITY_TOLERANCE.
            dtype: HANABI_DTYPE.
            is_relative: Whether a sample is computed again, also under other policies. If not, only
                the gap on all tokens and equal episodes are checked.
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
        """Return the gap between trainer and sampler on a micro-batch, see `check_mismatch`.

        Args:
            batch: The micro-batch.
            logprobs: [rows, tokens] the trainer's logprobs, under the version that should have
                sampled.
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
        """Check whether another policy sampled a step's games; all ranks call it together.

        Args:
            games: The step's games.
            before: The evidence of the earlier steps.

        Returns:
            The evidence including this step's, and metrics, e.g. "player_0/parity_slope".

        Raises:
            ParityError: On every rank, if another policy sampled them.
        """
        evidence = copy_evidence(before)
        metrics: dict[str, float] = {}
        findings: list[_Finding] = []
        if self.is_relative and games.samples:
            for player, measured in self._look(games, evidence).items():
                findings += self._judge(player, measured, games, evidence, metrics)
        findings += self._judge_repeats(games, evidence, metrics)
        # Findings are the same on every rank, because they come from sums over all ranks.
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
        """Return each player's sums, with comparisons to the suspects of this step.

        In 16 bits a fault is hidden by the gap's noise, so comparisons are always computed. In
        float32 it is visible, so they are computed only if a gap is larger than usual, or the usual
        gap is not known yet. The sign of the gap does not decide this, so the statistics of
        `evidence` hold.
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
        """Return the suspects of this step; the base model and other adapters take turns."""
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
            games: The step's games.
            suspects: Suspects by player, the same number for each player.
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

        None if that format is float32, or there are no suspects.
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

        The sums are the player's `_NUM_OWN` own sums, then those of each suspect, then those of the
        temperature. All are 0 if any of the trainer's logprobs is not finite.
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
        # At a higher temperature, tokens that are likelier than average become less likely.
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
            suspect: The suspect.
            games: The step's games.
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
        """Return the findings about a player's games; adds to evidence and metrics."""
        findings = self._judge_gap(player, measured, games, evidence)
        policies = self._judge_policies(player, measured, games, evidence, metrics)
        # Report only one suspect: one that stops the run, else the one that explains the gap best.
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
        """Return findings about suspects; the one that explains the step's gap best comes first."""
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
            f"{self._whose(player, games)}: the sampled tokens are {seen} surprising than their "
            f"reported logprobs imply, by {abs(by):.3g} nats per token in this step; that is "
            f"{score.z:.1f} standard errors over {score.num_steps} step(s) (allowed: {LIMIT:g}). "
            f"The server reports this policy's logprobs but samples from another one: {cause}."
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
            # The probability of an equal episode has no bound: the reported logprobs do not tell
            # how much probability TOP_K leaves out.
            return []
        score = repeat_score(remember(evidence, "episodes|repeats", counts))
        if score.z <= WARNING:
            return []
        message = (
            f"version {games.sampled_by}: {counts[0]:.0f} of {num_episodes} episodes are token by "
            f"token equal to an earlier one of their group; by their own logprobs that is "
            f"{score.z:.1f} standard errors over {score.num_steps} step(s) (allowed: {LIMIT:g}). "
            "The server draws the same random numbers again (a fixed seed for every request), or "
            "samples from a sharper distribution than it reports."
        )
        is_stop = score.z > LIMIT
        return [_Finding(kind="mismatch_repeated", player="", message=message, stops=is_stop)]

    def _likeliest(self, player: str, games: CheckedGames) -> str:
        """Return a sentence that names the suspect that explains the step's gap best."""
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
                " No suspect explains this step's logprobs (the previous version, another adapter, "
                "the base model, a scale, a temperature)."
            )
        name = self._describe(best, measured.comparisons[best], games.sampled_by)
        share = 1 - least / measured.gap_squares
        return f" Most likely: {name}, which explains {share:.0%} of the squared gap."

    def _metrics(self, player: str, suspect: str, comparison: Comparison) -> dict[str, float]:
        """Return the estimated slope, scale or temperature; the correct values are 0, 1 and 1."""
        if suspect == STALE:
            return {f"{player}/parity_slope": comparison.slope}
        if suspect == SCALED:
            return {f"{player}/parity_scale": 1 + (SCALES[self._dtype] - 1) * comparison.slope}
        if suspect == TEMPERATURE:
            return {f"{player}/parity_temperature": 1 + (HEATS[self._dtype] - 1) * comparison.slope}
        return {}

    def _describe(self, suspect: str, comparison: Comparison, version: int) -> str:
        """Return a suspect's name in messages."""
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
                f"the sampler's logprobs are not this version's, and even less those of {name}"
            )
            fault = "another policy"
        return (
            f"{self._whose(player, games)}: {verdict}, by {score.z:.1f} standard errors over "
            f"{score.num_steps} step(s) (allowed: {LIMIT:g}). Slope {comparison.slope:.2f} over "
            f"{measured.num_tokens:.0f} tokens of this step, where 0 is correct and 1 is "
            f"{self._unit(suspect)}. The server samples {fault}."
        )

    def _unit(self, suspect: str) -> str:
        if suspect == SCALED:
            return f"its own adapter times {SCALES[self._dtype]:g}"
        if suspect == TEMPERATURE:
            return f"{HEATS[self._dtype]:g} times TEMPERATURE"
        return "the other policy"


def _gap_rule(limits: GapLimits, num_steps: int) -> str:
    """Return the limits of a gap in words."""
    if limits.stop == limits.incident:
        return f"allowed: HANABI_PARITY_TOLERANCE={limits.stop:g}"
    if limits.median is None:
        return (
            f"in a first step, a gap above {limits.incident:.3g} is an incident, and a gap above "
            f"{limits.stop:.3g} (HANABI_PARITY_TOLERANCE) stops the run"
        )
    return (
        f"the median of the last {num_steps} step(s) is {limits.median:.3g}; a gap above "
        f"{limits.incident:.3g} is an incident, and a gap above {limits.stop:.3g} stops the run. "
        "Check whether the server was replaced, or its version or settings changed; if this player "
        "has just changed abruptly (entropy, unparsable replies), its larger logits round more"
    )


def _unexplained(suspect: str, comparison: Comparison, measured: _Measured) -> float:
    """Return the squared gap that would be left if the suspect had sampled."""
    if not comparison.distance:
        return math.inf
    if suspect in (SCALED, TEMPERATURE):
        explained = comparison.product**2 / comparison.distance
        return max(0.0, measured.gap_squares - explained)
    return comparison.residual


def _different_tokens(own: torch.Tensor, batch: MicroBatch) -> set[int]:
    """Return a number for each of a player's different tokens, the same on every rank.

    The same token in the same context has the same logprob, and other tokens hardly ever do, so
    tokens with equal logprobs are represented by the first of them. Its number is a hash of its id
    and of all ids before it, because another rank may round its logprob differently.

    Args:
        own: [reply tokens] the trainer's logprobs.
        batch: The micro-batch of these tokens.
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
    """Return each player's number of different tokens over all ranks."""
    counts = {}
    for player in of_ranks[0]:
        counts[player] = len(set().union(*(tokens[player] for tokens in of_ranks)))
    return counts


def _surprise_sums(sampler: torch.Tensor, law: TokenLaw) -> list[float]:
    """Return `surprise_sums` of a player's [reply tokens].

    With TOP_P or TOP_K, tokens are drawn from the filtered distribution, and only the positions at
    which it is known are used. The choice of positions does not depend on the tokens drawn there.
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
"""Description of the server's fault, by suspect."""
