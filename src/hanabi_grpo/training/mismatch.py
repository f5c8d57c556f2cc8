"""The logprob-mismatch checks: proof, in every step, that the policy that sampled is the policy
that is trained.

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
import logging
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from trl import GRPOTrainer

from hanabi_grpo.errors import ParityError
from hanabi_grpo.settings import deepspeed_stage
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import reply_logps
from hanabi_grpo.training.model.output_head import in_float32
from hanabi_grpo.training.model.prefix_tree import prefix_tree
from hanabi_grpo.training.overlap import KeptAdapters
from hanabi_grpo.types import adapter_of

logger = logging.getLogger(__name__)

TOKENS = 3072
"""Of a player's replies in a step, over all processes, that are computed under other policies."""
BLOCK = 32
"""Tokens of a block: neighbours share what rounding did to their context."""
LIMIT = 6.5
STEPS = 64
"""That are remembered."""
GAP_FACTOR, GAP_STEPS, GAP_TOKENS = 3.0, 16, 256
"""Of the running median, from which on a step's gap is an incident; steps and tokens that it takes
at least.
"""
STALE, BASE = "stale", "base"
Evidence = dict[str, list[list[float]]]
""""<player>|<suspect>": [Σ x, Σ block sums²] of each of the last steps; "<player>|gap": [mean |s −
t|].
"""


def check_mismatch(
    player: str,
    version: int,
    trainer: torch.Tensor,
    sampler: torch.Tensor,
    mask: torch.Tensor,
    *,
    tolerance: float,
) -> float:
    """Return the mean |trainer − sampler| in nats over a micro-batch's sampled tokens (`mask`);
    [batch, tokens] each.

    It is not a number when the trainer's own forward pass is not: its gradient is then not finite
    either, and the update is dropped there. Above the tolerance it is a ParityError."""
    if not bool(mask.any()):
        return 0.0
    gap = (trainer.detach().float() - sampler)[mask].abs()
    mean = gap.mean().item()
    if not bool(trainer.detach()[mask].isfinite().all()):
        return math.nan
    if not math.isfinite(mean) or mean > tolerance:
        raise ParityError(
            f"{player}@{version}: trainer and sampler logprobs differ by {mean:.3g} on average "
            f"(max {gap.max().item():.3g}) over {gap.numel()} tokens; allowed is "
            "HANABI_PARITY_TOLERANCE="
            f"{tolerance:g}. Trainer mean {trainer.detach()[mask].mean().item():.4f}, sampler mean "
            f"{sampler[mask].mean().item():.4f}. The server samples from another policy than the "
            "one trained here (a "
            "stale or swapped adapter, another base model or number format). Nothing was updated "
            "in this step; restart "
            "the server, then the trainer."
        )
    return mean


def compare(
    sampler: torch.Tensor, own: torch.Tensor, other: torch.Tensor
) -> tuple[float, float, float]:
    """Return Σ x, the sum of its blocks' squares, and Σ d² of [tokens] logprobs; zeros where one is
    not finite.
    """
    s, t, o = (values.double() for values in (sampler, own, other))
    d = o - t
    x = d * (s - (t + o) / 2)
    if not bool(x.isfinite().all()):
        return 0.0, 0.0, 0.0
    blocks = torch.nn.functional.pad(x, (0, -len(x) % BLOCK)).view(-1, BLOCK).sum(1)
    return float(x.sum()), float(blocks.square().sum()), float(d.square().sum())


def score(steps: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the largest z over the last 1, 2, 4, … of some [Σ x, Σ block sums²], and of how many
    steps it is.
    """
    found = [(0.0, 0)]
    for power in range(STEPS.bit_length()):
        last = steps[-(2**power) :]
        squares = sum(one[1] for one in last)
        if squares and len(last) == 2**power:
            found.append((sum(one[0] for one in last) / squares**0.5, len(last)))
    return max(found)


def sample_of(batch: dict[str, Any], limit: int, first: int) -> dict[str, Any]:
    """Return rows of a micro-batch, from number `first` on, cut behind about `limit` reply
    tokens.
    """
    data = batch["grpo_batch"]
    columns = batch["model_inputs"]["input_ids"], data.completion_mask, data.rollout_per_token_logps
    ids, mask, sampler = (one.roll(-(first % len(one)), 0) for one in columns)
    rows = max(1, int((mask.sum(1).cumsum(0) <= limit).sum()))
    seen = mask[:rows].sum(0).cumsum(0)
    width = int((seen < min(limit, int(seen[-1]))).sum()) + 1
    ids, mask, sampler = ids[:rows, : width + 1], mask[:rows, :width], sampler[:rows, :width]
    tree = prefix_tree(ids, mask) if data.tree is not None else None
    cut = replace(data, completion_mask=mask, rollout_per_token_logps=sampler, tree=tree)
    return {"model_inputs": {"input_ids": ids}, "grpo_batch": cut}


class RelativeMismatch(GRPOTrainer):
    """A trainer that looks, before it learns from a step's games, whether another policy has
    sampled them.
    """

    relative = False
    whole_logits = False

    def watch_rounding(self, saved: Mapping[str, Any]) -> None:
        """Begin with the evidence of a resumed run, or with none; once the settings are known."""
        self.evidence: dict[int, Evidence] = {self.first_step: dict(saved)}
        """By the number of steps before them, as `baselines`."""
        rounded, whole = self.settings.dtype != "float32", deepspeed_stage(self.settings) != 3
        self.relative = rounded and whole
        self.kept = KeptAdapters(behind=self.settings.overlap + self.relative)
        if rounded and not whole:
            logger.warning(
                "under ZeRO-3 no process holds whole adapters, so there is no relative mismatch "
                "check: an adapter that "
                "is a step old is found only where it passes HANABI_PARITY_TOLERANCE=%g",
                self.settings.parity_tolerance,
            )

    def compare_policies(
        self, batches: Iterable[dict[str, Any]], version: int, sampled_by: int
    ) -> None:
        """Compare a sample of a step's games with other policies; all ranks together.

        `version` is that of the weights of now, `sampled_by` the one that the games should be of.
        Of another policy they are a ParityError."""
        if not self.relative:
            return
        start = time.perf_counter()
        own: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            own.setdefault(batch["grpo_batch"].player, []).append(batch)
        limit = max(1, TOKENS // self.accelerator.num_processes)
        sample = {
            player: sample_of(of[version % len(of)], limit, version) for player, of in own.items()
        }
        figures, suspects = self._look(sample, version, sampled_by)
        total = self.accelerator.reduce(
            torch.tensor(figures, dtype=torch.float64, device=self.accelerator.device)
        )
        self._metrics["train"]["time/mismatch"].append(time.perf_counter() - start)
        before = self.evidence.get(version, {})
        self.evidence = {
            version: before,
            version + 1: {key: list(value) for key, value in before.items()},
        }
        for player, of_player in zip(own, total.tolist(), strict=True):
            self._judge(player, suspects[player], of_player, self.evidence[version + 1], sampled_by)

    def _look(
        self, sample: Mapping[str, dict[str, Any]], version: int, sampled_by: int
    ) -> tuple[list[list[float]], dict[str, str]]:
        """Return per player Σ|s − t| and tokens, `compare` with the version before and with the
        other suspect: 8.
        """
        model = self.accelerator.unwrap_model(self.model)

        def logps(player: str, adapter: str) -> torch.Tensor:
            with adapters.base_only(model) if adapter == BASE else contextlib.nullcontext():
                if adapter != BASE:
                    adapters.use_adapter(model, adapter)
                ids, data = (
                    sample[player]["model_inputs"]["input_ids"],
                    sample[player]["grpo_batch"],
                )
                mask, whole = data.completion_mask, self.whole_logits
                inner: Any = model.base_model
                return reply_logps(
                    inner, model, ids, mask, self.temperature, data.tree, whole_logits=whole
                )[mask]

        names = {player: adapter_of(player, self.adapter_names) for player in sample}
        suspects = {}
        for player, name in names.items():
            others = [BASE, *(one for one in self.adapter_names if one != name)]
            suspects[player] = others[version % len(others)]
        past = (
            self.kept.using(model, sampled_by)
            if sampled_by != version
            else contextlib.nullcontext()
        )
        with past, in_float32(model):
            now = {player: logps(player, name) for player, name in names.items()}
            other = {player: logps(player, suspects[player]) for player in names}
            before = now
            if sampled_by - 1 in self.kept.versions:
                with self.kept.using(model, sampled_by - 1):
                    before = {player: logps(player, name) for player, name in names.items()}
        found = []
        for player, t in now.items():
            data = sample[player]["grpo_batch"]
            s = data.rollout_per_token_logps[data.completion_mask]
            gap = float((s - t).abs().nansum())
            found.append(
                [gap, float(len(s)), *compare(s, t, before[player]), *compare(s, t, other[player])]
            )
        return found, suspects

    def _judge(
        self, player: str, suspect: str, figures: Sequence[float], evidence: Evidence, version: int
    ) -> None:
        gap, tokens, *sums = figures
        found = []
        for name, (x, squares, distance) in ((STALE, sums[:3]), (suspect, sums[3:])):
            if not squares:
                continue
            slope = 0.5 + x / distance
            if name == STALE:
                self._metrics["train"][f"{player}/parity_slope"].append(slope)
            z, steps = score(_remember(evidence, f"{player}|{name}", [x, squares]))
            if z > LIMIT:
                found.append(
                    (abs(slope - 1), _sentence(player, name, version, z, steps, slope, tokens))
                )
        if found:
            raise ParityError(min(found)[1])
        if tokens < GAP_TOKENS:
            return
        gaps = [one for [one] in evidence.get(f"{player}|gap", [])]
        _remember(evidence, f"{player}|gap", [gap / tokens])
        if len(gaps) >= GAP_STEPS and gap / tokens > GAP_FACTOR * statistics.median(gaps):
            said = (
                f"{player}@{version}: trainer and sampler logprobs differ by "
                f"{gap / tokens:.3g} on average over "
            )
            said += (
                f"{tokens:.0f} tokens, {GAP_FACTOR:g} times the median of the last "
                f"{len(gaps)} steps or more "
            )
            said += (
                f"({statistics.median(gaps):.3g}). Was the server replaced, or its version or "
                "settings changed?"
            )
            self._incident("mismatch_rose", said, player=player, gap=gap / tokens)


def _remember(evidence: Evidence, key: str, value: list[float]) -> list[list[float]]:
    evidence[key] = [*evidence.get(key, []), value][-STEPS:]
    return evidence[key]


def _sentence(
    player: str, suspect: str, version: int, z: float, steps: int, slope: float, tokens: float
) -> str:
    who = {
        STALE: f"version {version - 1} of its adapter",
        BASE: "the base model without an adapter",
    }
    what = {STALE: "a stale adapter", BASE: "without its adapter"}
    return (
        f"{player}@{version}: the sampler's logprobs are closer to those of "
        f"{who.get(suspect, f'adapter {suspect}')} "
        f"than to this version's, by {z:.1f} standard errors over {steps} step(s); allowed are "
        f"{LIMIT:g}. Slope "
        f"{slope:.2f} over {tokens:.0f} tokens of this step, where 0 is right and 1 is the other "
        "policy. The server "
        f"samples {what.get(suspect, 'a swapped adapter')}. Nothing was updated in this step; "
        "restart the server, then "
        "the trainer, with RESUME at a checkpoint from before these steps."
    )
