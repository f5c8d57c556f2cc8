"""Weights of the last versions, so that games of an earlier version meet the policy that sampled them.

With HANABI_OVERLAP=1 a step's games are sampled with version v and learned from at version v + 1. The probability
ratio of PPO (Schulman et al. 2017, equation 6) is π(a|s) / π_old(a|s) with π_old the policy that sampled, so π_old is
version v. Its logprobs are the trainer's own, from a forward pass under the kept weights of v, and not those that came
with the games:

- The ratio is exactly 1 where the weights are equal, as in the plain path: another program's rounding stays out of
  what is clipped.
- The difference of both is what HANABI_SAMPLER_CORRECTION weighs by: trainer over sampler at one version, with overlap
  as without. With the sampler's logprobs as π_old it would have no effect.
- It is what the parity gate compares, so the gate sees every token of every step here as well.

The price is one forward pass without a gradient over each micro-batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hanabi_grpo.errors import VersionError


class KeptAdapters:
    """All adapters' weights as they were at the last two pushes. Every rank keeps its own copy."""

    def __init__(self) -> None:
        """Begin with none."""
        self._versions: dict[int, dict[str, torch.Tensor]] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that are kept, oldest first."""
        return tuple(self._versions)

    def keep(self, model: torch.nn.Module, version: int) -> None:
        """Remember the weights of now under their version; only the version before it stays beside it."""
        before = {number: kept for number, kept in self._versions.items() if number == version - 1}
        self._versions = {**before, version: _copy(model)}

    @contextmanager
    def using(self, model: torch.nn.Module, version: int) -> Iterator[None]:
        """Let forward passes use the weights of a version; those of now come back bit by bit.

        In place, because optimizers and DeepSpeed hold on to the tensors themselves.

        Raises:
            VersionError: That version is not kept.
        """
        if version not in self._versions:
            raise VersionError(
                f"the adapters of version {version} are not kept here (kept: {list(self._versions)}), so its games "
                "cannot be learned from. Restart the trainer with RESUME=latest."
            )
        now = _copy(model)
        try:
            _put(model, self._versions[version])
            yield
        finally:
            _put(model, now)


def _copy(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if "lora_" in name}


def _put(model: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
