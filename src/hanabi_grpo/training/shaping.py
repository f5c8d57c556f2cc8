"""Parts of a token's advantage that depend on the policy and not on the game.

Both are score-function estimators: a term f added to the advantage of a token a, sampled from π in the state s, moves
the weights by E[f ∇log π(a|s)]. They are weighted per token, whatever HANABI_LOSS_UNIT says of the rewards
and HANABI_UPDATE=sequential of the game.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.types import Episode, is_trained, player_name


def shape_advantages(
    batches: Iterable[dict[str, Any]],
    settings: Settings,
    groups: Sequence[Sequence[Episode]],
    trained: Sequence[str],
) -> list[float]:
    """Add the parts that the settings ask for to the advantages of a step's micro-batches.

    Args:
        batches: Of `plan_batches`; with HANABI_KL=reward and BETA they hold the reference's logprobs.
        settings: BETA, HANABI_KL and HANABI_ENTROPY_BONUS from here.
        groups: The games of the step, of all ranks.
        trained: Words of the seats that are trained in this step.

    Returns:
        With HANABI_KL=reward the mean of log π − log π_ref per micro-batch with a sampled token, in nats.
    """
    means = {}
    if settings.entropy_bonus:
        episodes = [episode for group in groups for episode in group]
        means = {
            player_name(player): mean_logprob(
                turn.logprobs
                for episode in episodes
                if is_trained(episode, player, trained)
                for turn in episode.trajectory(player)
            )
            for player in range(len(trained))
        }
    gaps = []
    for data in (batch["grpo_batch"] for batch in batches):
        mask, sampled = data.completion_mask, data.rollout_per_token_logps
        parts = []
        if settings.beta and settings.kl == "reward":
            parts.append(kl_part(sampled, data.ref_per_token_logps, mask, settings.beta))
            if bool(mask.any()):
                gaps.append(float((sampled - data.ref_per_token_logps)[mask].mean().item()))
        if settings.entropy_bonus:
            parts.append(entropy_part(sampled, mask, settings.entropy_bonus, means[data.player]))
        if parts:
            data.shaping = sum(parts[1:], parts[0])
            data.advantages = data.advantages + data.shaping
    return gaps


def kl_part(logps: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, beta: float) -> torch.Tensor:
    """Return −β (log π(a) − log π_ref(a)) on sampled tokens, 0 elsewhere.

    With f = −β log(π/π_ref) the expected step is −β ∇KL(π(·|s) ‖ π_ref(·|s)), the exact gradient, while the usual term
    in the loss (k3: r − log r − 1 with r = π_ref/π) has another expectation where the policies differ (Schulman,
    "Approximating KL divergence", 2020, for the estimators k1 and k3). Unlike in RLHF (Ouyang et al. 2022) a token's
    part does not enter the return of earlier tokens, and no baseline is taken off.

    Args:
        logps: [batch, tokens] under the policy that sampled, in nats.
        reference: [batch, tokens] under the base model.
        mask: [batch, tokens], True on sampled tokens.
        beta: Weight.
    """
    return torch.where(mask, -beta * (logps - reference), 0.0)


def entropy_part(logps: torch.Tensor, mask: torch.Tensor, weight: float, mean: float) -> torch.Tensor:
    """Return −c (log π(a) − mean) on sampled tokens, 0 elsewhere; the expected step is c ∇H(π(·|s)).

    It is the part −log π(a) of Williams and Peng (1991); the constant `mean` changes no expectation and lowers the
    variance.

    Args:
        logps: [batch, tokens] under the policy that sampled, in nats.
        mask: [batch, tokens], True on sampled tokens.
        weight: The c of HANABI_ENTROPY_BONUS.
        mean: Mean log probability of the player's tokens in the step, in nats.
    """
    return torch.where(mask, -weight * (logps - mean), 0.0)


def mean_logprob(logprobs: Iterable[Iterable[float]]) -> float:
    """Return the mean over all tokens of all replies; 0 where there is none."""
    values = [value for reply in logprobs for value in reply]
    return sum(values) / len(values) if values else 0.0
