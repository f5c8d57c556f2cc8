"""HANABI_REFERENCE: the policy that the KL term keeps players close to.

`base` is the base model without any adapter. `start` is each player's adapter at the start of the
run: after a warm start the KL starts at 0 and preserves what the warm start has taught. `every:K`
is the adapter at the last step that K divides, so a player may move far, but not fast.

The weights of `start` and `every:K` are saved in each checkpoint, so that a resumed run continues
with them. A fork begins with those of the run that it was forked from, if that run had any.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch

from hanabi_grpo.settings.values import reference_steps
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import Policy

BASE = "base"
"""The value of HANABI_REFERENCE that needs no separate weights."""


class Reference:
    """The reference policy of a run, and its weights if it has any."""

    def __init__(self, policy: Policy, choice: str) -> None:
        """Start without weights; `begin_step` copies them.

        Args:
            policy: The model with all adapters.
            choice: HANABI_REFERENCE.
        """
        self._policy = policy
        self._is_base = choice == BASE
        self._every = reference_steps(choice)
        self.weights: Mapping[str, torch.Tensor] = {}
        """Weights of all adapters, on the CPU; empty with `base`."""

    def begin_step(self, step: int) -> None:
        """Copy the current weights if they become the reference in this step.

        Args:
            step: Number of steps before this one.
        """
        if self._is_base:
            return
        is_due = self._every is not None and step % self._every == 0
        if is_due or not self.weights:
            self.weights = adapters.copy_parameters(self._policy.adapter_parameters)

    def restore(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Continue with the weights of a checkpoint."""
        if not self._is_base:
            self.weights = weights

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the reference's weights in the block; current adapters are restored bit by bit."""
        if self._is_base:
            yield
            return
        with adapters.holding(self._policy.adapter_parameters, self.weights):
            yield

    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Return [rows, tokens - 1] logprobs under the reference; call it within `in_use`."""
        if self._is_base:
            return self._policy.reference_logprobs(batch)
        return self._policy.fixed_logprobs(batch)
