"""Micro-batches of a size that the games decide, in a loop that wants to know their number beforehand.

Hugging Face's loop counts `gradient_accumulation_steps` micro-steps an update. Here such a step holds one micro-batch
or several, whose gradients add up in it: how many depends on the tokens that were played, and is the same on every
rank.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import DistributedType
from transformers import Trainer

from hanabi_grpo.training.cutting import cut_by_rows
from hanabi_grpo.training.update_order import Update

MicroStep = list[dict[str, Any]]
"""One micro-batch or several, of one player and update."""


def micro_steps(updates: Sequence[Update], per_player: int) -> list[MicroStep]:
    """Return the micro-steps of a step's updates in the order of training, `per_player` of each player and update."""
    found = []
    for update in updates:
        for player in dict.fromkeys(batch["grpo_batch"].player for batch in update.batches):
            own = [batch for batch in update.batches if batch["grpo_batch"].player == player]
            found += [own[start:end] for start, end in cut_by_rows(len(own), per_player)]
    return found


class MicroSteps:
    """Mixed into a trainer of trl, before it: its batches are `MicroStep`."""

    accelerator: Any
    _step: int
    _current_train_step_time: float
    _micro_batch: dict[str, Any] | None = None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Train on the micro-batches of one micro-step; returns the sum of their losses, for the log."""
        start = time.perf_counter()
        model.train()
        *earlier, last = super()._prepare_inputs(inputs)  # type: ignore[misc]
        state = self.accelerator.gradient_state
        closes = state.sync_gradients
        total = torch.zeros((), device=self.accelerator.device)
        try:
            state._set_sync_gradients(False)
            for self._micro_batch in earlier:
                with self._not_yet_shared(model):
                    # Not trl's: it counts micro-steps.
                    total += Trainer.training_step(self, model, inputs, num_items_in_batch)
            state._set_sync_gradients(closes)
            self._micro_batch = last
            self._current_train_step_time += time.perf_counter() - start
            return total + super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        finally:
            self._micro_batch = None

    def _prepare_inputs(self, inputs: Any) -> Any:
        return super()._prepare_inputs(inputs) if self._micro_batch is None else self._micro_batch  # type: ignore[misc]

    def _not_yet_shared(self, model: Any) -> contextlib.AbstractContextManager[None]:
        # DeepSpeed asks the flag instead.
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(model)
