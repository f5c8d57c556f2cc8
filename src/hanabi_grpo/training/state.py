"""The state that one step passes to the next besides the weights and the optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hanabi_grpo.training.matchmaking import PartnerRecord

Evidence = Mapping[str, Sequence[Sequence[float]]]
"""Evidence of the mismatch check, see `mismatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The factor of the loss in float16, without which small gradients would be rounded to 0.

    It starts at 65,536. An update whose gradient becomes infinite is dropped and halves it, and a
    long series of updates without a drop doubles it.
    """

    scale: float
    """The factor."""
    good_updates: int
    """Number of updates since the last dropped one; without DeepSpeed, since the scale's last
    change."""
    hysteresis: int | None = None
    """With DeepSpeed, which of the next dropped updates is the first to halve the scale, e.g. 2 for
    the second one; None without DeepSpeed, where each halves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """The state after a number of finished steps.

    It is saved in checkpoints, so that a resumed run takes the same next step as an uninterrupted
    one. It is replaced as a whole when a step is finished, so after an interrupt in the middle of a
    step, the state of the previous step can still be saved.
    """

    step: int
    """Number of finished steps, which is also the version of the adapters."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """Baselines of an estimator with moving baselines, e.g. {"player_0 9f3c…": 1.75}; empty with
    other estimators."""
    critics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights and optimizers of critics or credit heads; empty if there are none."""
    mismatch: Evidence = field(default_factory=dict)
    """Evidence of the mismatch check, by player and suspect."""
    earlier: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Weights of the previous version, a suspect of the mismatch check; empty at the start, and
    under ZeRO-3."""
    kl_weights: Mapping[str, float] = field(default_factory=dict)
    """With BETA, each player's weight of the KL term, which HANABI_KL_TARGET adapts."""
    reference: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Weights of HANABI_REFERENCE=start or every:K; empty if the base model is the reference."""
    partners: PartnerRecord = field(default_factory=PartnerRecord)
    """Games with each partner of HANABI_PARTNERS; empty without partners."""
    loss_scale: LossScale | None = None
    """The loss scale of float16; None with other types."""
    phase_best: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """With HANABI_UPDATE=best_response, the trained player's weights at the phase's best
    validation; empty otherwise."""
