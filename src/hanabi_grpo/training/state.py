"""What must be remembered between two steps beside the weights and the optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from hanabi_grpo.training.matchmaking import PartnerRecord

Evidence = Mapping[str, Sequence[Sequence[float]]]
"""Of the mismatch check, see `mismatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """The state behind a number of finished steps.

    A checkpoint holds it, and a resumed run takes from it the next step that the whole run would
    have taken. It is replaced as a whole when a step is finished, so an interrupt in the middle of
    a step still saves the state of the step before.
    """

    step: int
    """Finished steps, which is the version of the adapters too."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """Of an estimator with moving baselines, {"player_0 9f3c…": 1.75}; empty with any other."""
    critics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights and optimizers of critics or heads of credit; empty without."""
    mismatch: Evidence = field(default_factory=dict)
    """Evidence of the mismatch check, by player and suspect."""
    earlier: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Weights of the version before this one, which the mismatch check suspects; empty at the
    start, and under ZeRO-3."""
    kl_weights: Mapping[str, float] = field(default_factory=dict)
    """With BETA each player's weight of the KL term, which HANABI_KL_TARGET adapts."""
    reference: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Weights of HANABI_REFERENCE=start or every:K; empty with the base model."""
    partners: PartnerRecord = field(default_factory=PartnerRecord)
    """Games with each partner of HANABI_PARTNERS; empty without."""
    phase_best: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """With HANABI_UPDATE=best_response the weights that the trained player had at the phase's best
    validation; empty with any other."""
