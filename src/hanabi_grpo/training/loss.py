"""The objective: the loss of one player's micro-batch, from advantages to a scalar.

    L = 1/N · Σ_t v_t · [ −min(ρ_t A_t, clip(ρ_t, 1 − ε_low, 1 + ε_high) A_t) + β k_t ],
    A_t = A_turn · u_t · g · q + b_t,    k_t = r_t − log r_t − 1

over the player's sampled tokens t. Everything else in a sequence is masked out, and so are thoughts
with HANABI_TRAIN_THOUGHTS=0.

With HANABI_DUAL_CLIP=c the minimum is at least c A_t if A_t < 0: max(min(…), c A_t).

With a teacher (HANABI_TEACHER), the cross-entropy of `lessons` over the teacher's tokens is added;
a teacher that is a model adds to b_t instead. With HANABI_BELIEF_WEIGHT, the cross-entropy of
`belief_labels` over the right answers to questions about hidden cards is added.

| symbol | meaning | source |
|---|---|---|
| A_turn | advantage of the token's turn | `estimators` |
| u | weight of the token in the mean | HANABI_LOSS_UNIT, `token_weights` |
| g | weight of the game, 1 except with HANABI_UPDATE=sequential | `updates` |
| q | weight of the reward for a player with a teacher, else 1 | HANABI_REWARD_WEIGHT |
| b | entropy bonus of the token | HANABI_ENTROPY_BONUS, `entropy_terms` |
| ρ | π(a|s) / π_old(a|s), new policy over the one that sampled | PPO (arXiv 1707.06347), eq. 6, 7 |
| ε | clip range of ρ, one width for each side | DAPO (arXiv 2503.14476), "Clip-Higher" |
| c | upper bound on ρ of tokens with A_t < 0, > 1 | dual-clip PPO (arXiv 1912.09729), eq. 5 |
| r | π_ref(a|s) / π(a|s), `reference` over new policy | GRPO (arXiv 2402.03300), equation 4 |
| β | weight of the KL term, BETA or a player's own | HANABI_KL_TARGET, `kl` |
| v | π_old(a|s) / π_sampler(a|s), one version in two programs | Yao et al. 2025, see `PolicyLoss` |
| N | the player's sampled tokens of the step, over all processes | DAPO, "Token-Level … Loss" |

π is this trainer's forward pass (`policy`) at the sampling temperature. π_old is the same forward
pass before the step's first update, or with HANABI_OVERLAP under the version that sampled
(`overlap`). π_sampler came with the tokens; `mismatch` has checked that it agrees with π_old.

With HANABI_DECOUPLED_LOSS, π_old is the policy before the step's first update, also with
HANABI_OVERLAP. Then v is the ratio of two versions, and the clip bounds the change of one step
instead of the change of all steps since the sampling: decoupled PPO (Hilton et al. 2021,
arXiv 2110.00641, equation 2; for language models AReaL, arXiv 2505.24298, equation 5).

The factors are separate columns of `MicroBatch` and are combined only here. ms-swift computes the
same with `loss_type=dapo`; `tests/conformance/test_loss.py` checks that both are equal bit by bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress

import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.types import Episode, Turn, is_trained

_LARGEST_LOG = 20.0
"""Largest |log ratio| that is exponentiated: e^20 is 5e8, and infinity would ruin the step."""
_LARGEST_KL = 10.0
_SMALLEST_RATIO = 1e-10
LOSS_MEANS = {
    "low": "clip_ratio/low_mean",
    "high": "clip_ratio/high_mean",
    "region": "clip_ratio/region_mean",
    "dual": "clip_ratio/dual_mean",
    "kl": "kl",
}
"""Names in metrics.jsonl of the figures of `PolicyLoss`, means over the tokens of all processes."""
LOSS_EXTREMES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "low": ("clip_ratio/low_min", torch.min),
    "high": ("clip_ratio/high_max", torch.max),
}
"""Name and function of each extreme over the processes' means in a micro-batch; the metric is the
mean of these extremes over micro-batches."""


class PolicyLoss:
    """The clipped loss of a run, configured by its settings."""

    def __init__(self, settings: Settings) -> None:
        """Take HANABI_CLIP_*, HANABI_DUAL_CLIP, BETA and HANABI_SAMPLER_CORRECTION*."""
        self.clip_low = settings.clip_low
        self.clip_high = settings.clip_high
        self.dual_clip = settings.dual_clip
        # With HANABI_KL_IN=reward the KL is not part of the loss, see `kl`.
        self.beta = settings.beta if settings.kl_in == "loss" else 0.0
        self.correction = settings.sampler_correction
        self.correction_limit = settings.sampler_correction_limit

    def __call__(
        self, logprobs: torch.Tensor, batch: MicroBatch, num_processes: int = 1
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss, and figures that are measured along the way.

        Args:
            logprobs: [rows, tokens] log π of the batch's tokens, in nats, with a gradient.
            batch: Mask, advantages and their weights, and the logprobs of the other policies,
                [rows, tokens] each.
            num_processes: Number of processes whose gradients are averaged; N is divided by it.

        Returns:
            A number whose sum over an update's micro-batches is the player's loss, and means over
            sampled tokens: the shares "low", "high" and "region" that are clipped, the share "dual"
            that HANABI_DUAL_CLIP clips, and "kl" in nats.
        """
        mask = batch.trained_mask
        advantages = token_advantages(batch)
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs

        # ρ, and −min(ρ A, clip(ρ) A)
        ratio = torch.exp(logprobs - old)
        clipped = torch.clamp(ratio, 1 - self.clip_low, 1 + self.clip_high)
        token_loss = -torch.min(ratio * advantages, clipped * advantages)
        low = (ratio < 1 - self.clip_low) & (advantages < 0)
        high = (ratio > 1 + self.clip_high) & (advantages > 0)
        measured = {"low": low, "high": high, "region": low | high}

        # −max(min(…), c A) where A < 0
        if self.dual_clip is not None:
            limit = -self.dual_clip * advantages
            measured["dual"] = (advantages < 0) & (token_loss > limit)
            token_loss = torch.where(advantages < 0, torch.min(token_loss, limit), token_loss)

        # + β (r − log r − 1)
        if self.beta:
            if batch.reference_logprobs is None:
                raise ValueError(f"BETA={self.beta:g} needs logprobs of the reference policy.")
            weight = self.beta if batch.kl_weight is None else batch.kl_weight
            measured["kl"] = kl_estimate(logprobs, batch.reference_logprobs)
            token_loss = token_loss + weight * measured["kl"]

        # · v
        if self.correction != "none":
            token_loss = token_loss * self.sampler_weights(old, batch)

        # 1/N Σ over sampled tokens
        num_step_tokens = torch.tensor(max(batch.num_reply_tokens, 1), device=mask.device)
        loss = (token_loss * mask).sum() / (num_step_tokens / num_processes)

        # + w/M Σ over a teacher's tokens
        if batch.teacher_weight and batch.lesson_weights is not None:
            loss = loss + batch.teacher_weight * lesson_loss(logprobs, batch, num_processes)

        # + w/M Σ over tokens of right answers
        if batch.belief_weight and batch.belief_mask is not None:
            loss = loss + batch.belief_weight * belief_loss(logprobs, batch, num_processes)
        num_tokens = mask.sum().clamp(min=1.0)
        means = {}
        for name, value in measured.items():
            total = (value.detach().float() * mask).sum()
            means[name] = total / num_tokens
        return loss, means

    def sampler_weights(self, old: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """Return [rows, tokens] weights π_old / π_sampler, limited; only with a `correction`.

        With `truncate` a weight above the limit becomes the limit; with `mask` it becomes 0. The
        limit applies to each token's own ratio, or with `sequence` to the geometric mean over the
        sequence's sampled tokens. With `sequence_mask`, the tokens of a sequence below the limit
        keep their own weights.

        Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
        Training"; for sequences Liu et al. 2025, "When Speed Kills Stability".
        """
        log_ratio = torch.clamp(old - batch.sampler_logprobs, min=-_LARGEST_LOG, max=_LARGEST_LOG)
        ratio = torch.exp(log_ratio)
        compared = ratio
        if self.correction.startswith("sequence"):
            mask = batch.trained_mask
            logs = torch.log(ratio.clamp(min=_SMALLEST_RATIO))
            num_tokens = mask.sum(-1).clamp(min=1.0)
            mean = (logs * mask).sum(-1) / num_tokens
            compared = torch.exp(mean).unsqueeze(-1).expand_as(ratio)
        if self.correction.endswith("truncate"):
            return torch.clamp(compared, max=self.correction_limit)
        return torch.where(compared > self.correction_limit, 0.0, ratio)


def token_advantages(batch: MicroBatch) -> torch.Tensor:
    """Return [rows, tokens] A_turn · u · g · q + b, the factor of the probability ratios.

    The entropy bonus concerns only the player's own policy, so it is not multiplied by the weights
    of the loss unit or of the game.
    """
    advantages = batch.advantages
    if batch.loss_weights is not None:
        advantages = advantages * batch.loss_weights
    if batch.game_weights is not None:
        advantages = advantages * batch.game_weights
    if batch.reward_weight != 1:
        advantages = advantages * batch.reward_weight
    if batch.entropy_bonus is not None:
        advantages = advantages + batch.entropy_bonus
    if batch.teacher_gaps is not None:
        advantages = advantages + batch.teacher_weight * batch.teacher_gaps
    return advantages


def lesson_loss(logprobs: torch.Tensor, batch: MicroBatch, num_processes: int = 1) -> torch.Tensor:
    """Return a micro-batch's part of −1/M Σ p u_t log π(a_t), see `lessons`.

    Args:
        logprobs: [rows, tokens] log π of the batch's tokens, in nats.
        batch: A micro-batch with a teacher's tokens.
        num_processes: Number of processes whose gradients are averaged; M is divided by it.
    """
    if batch.lesson_weights is None:
        raise ValueError(f"{batch.player}: the micro-batch has no teacher's tokens.")
    total = -(logprobs * batch.lesson_weights).sum()
    return total / (batch.num_lesson_tokens / num_processes)


def belief_loss(logprobs: torch.Tensor, batch: MicroBatch, num_processes: int = 1) -> torch.Tensor:
    """Return a micro-batch's part of −1/M Σ log π(a_t), see `belief_labels`.

    Args:
        logprobs: [rows, tokens] log π of the batch's tokens, in nats.
        batch: A micro-batch with tokens of right answers.
        num_processes: Number of processes whose gradients are averaged; M is divided by it.
    """
    if batch.belief_mask is None:
        raise ValueError(f"{batch.player}: the micro-batch has no right answers.")
    total = -(logprobs * batch.belief_mask).sum()
    return total / (batch.num_belief_tokens / num_processes)


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return r − log r − 1 with r = π_ref / π per token, the estimator k3, never below 0.

    Its mean over tokens of π estimates KL(π ‖ π_ref). But inside a loss, its gradient is that of
    another divergence: ∇k3 = (1 − r) ∇log π, whose mean is the gradient of KL(π_ref ‖ π)
    (arXiv 2506.09477). Both gradients are 0 at π = π_ref and agree there to first order.

    Args:
        logprobs: [rows, tokens] log π in nats.
        reference: [rows, tokens] log π_ref in nats.

    Source: Schulman, "Approximating KL divergence", 2020; GRPO (arXiv 2402.03300), equation 4.
    """
    log_ratio = torch.clamp(reference - logprobs, min=-_LARGEST_LOG, max=_LARGEST_LOG)
    kl = torch.exp(log_ratio) - log_ratio - 1
    return torch.clamp(kl, min=-_LARGEST_KL, max=_LARGEST_KL)


def mean_logprobs(
    groups: Sequence[Sequence[Episode]],
    trained_seats: Sequence[str],
    players: Sequence[str],
    trained: Callable[[Turn], Sequence[bool]] | None = None,
) -> dict[str, float]:
    """Return each player's mean logprob in nats over its sampled tokens, the negative entropy.

    Measure it on the groups as they were drawn: players are less certain in the groups that replace
    zero-variance ones (HANABI_RESAMPLE_FLAT).

    Args:
        groups: Per task, its games, the same on all ranks.
        trained_seats: Per seat, the adapter that is trained there, see `seats.SeatAssignment`.
        players: Per seat, the player who holds it.
        trained: Which tokens of a reply carry loss; None: all.
    """
    episodes = flatten_groups(groups)
    means: dict[str, float] = {}
    for seat, player in enumerate(players):
        logprobs: list[float] = []
        for episode in episodes:
            if not is_trained(episode, seat, trained_seats):
                continue
            for turn in episode.trajectory(seat):
                counts = [True] * len(turn.logprobs) if trained is None else trained(turn)
                logprobs.extend(compress(turn.logprobs, counts))
        means[player] = sum(logprobs) / len(logprobs) if logprobs else 0.0
    return means


def add_entropy_bonus(
    batches: Iterable[MicroBatch],
    weight: float,
    means: Mapping[str, float],
    targets: Mapping[str, float] | None = None,
) -> None:
    """Set the HANABI_ENTROPY_BONUS column of a step's micro-batches, see `entropy_terms`.

    Args:
        batches: All micro-batches of this rank.
        weight: HANABI_ENTROPY_BONUS.
        means: Returned by `mean_logprobs`.
        targets: Each player's HANABI_ENTROPY_TARGET in the step, in nats per token; None: always
            the whole bonus.
    """
    for batch in batches:
        target = None if targets is None else targets[batch.player]
        batch.entropy_bonus = entropy_terms(batch, weight, means[batch.player], target)


def entropy_terms(
    batch: MicroBatch, weight: float, mean_logprob: float, target: float | None = None
) -> torch.Tensor:
    """Return [rows, tokens] −c (log π(a) − mean) on sampled tokens, 0 elsewhere.

    It is a score-function estimator: a term f added to the advantage of a token a, sampled from π
    in the state s, adds E[f ∇log π(a|s)] to the gradient, here c ∇H(π(·|s)). Subtracting the mean
    over a player's tokens of the step does not change the expectation and lowers the variance.

    With a `target`, c is `weight` times 1 − H / target for a player whose entropy H is below it,
    and 0 above: a constant bonus is either negligible next to the rewards or makes the policy
    random.

    Args:
        batch: A micro-batch, for the sampler's logprobs.
        weight: HANABI_ENTROPY_BONUS.
        mean_logprob: Mean over the player's sampled tokens in the step, in nats.
        target: Entropy in nats per token; None: always the whole bonus.

    Source: Williams and Peng 1991; bonus below a target: Skywork-OR1 (arXiv 2505.22312), which
    changes the weight in fixed steps.
    """
    entropy = -mean_logprob
    coefficient = weight
    if target is not None:
        missing_share = 1 - entropy / target if entropy < target else 0.0
        coefficient = weight * missing_share
    surprise = batch.sampler_logprobs - mean_logprob
    return torch.where(batch.reply_mask, -coefficient * surprise, 0.0)
