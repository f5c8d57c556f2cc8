"""Several optimizer updates inside one step of Hugging Face's loop.

That loop knows one update a step, after `gradient_accumulation_steps` micro-batches, and counts versions, schedule and
checkpoints by it. `UpdateSteps` closes the earlier updates itself, at the end of the micro-batch that completes each,
by the calls that the loop makes for the last one. Under DeepSpeed the update is part of `accelerator.backward`, which
asks the same flag.
"""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from hanabi_grpo.settings import BatchPlan, Settings
from hanabi_grpo.training.adapters import use_adapter
from hanabi_grpo.training.isolation import PlayerGuard
from hanabi_grpo.training.sequential import game_log_ratios, game_weights
from hanabi_grpo.training.update_order import Update, micro_batches_in_update, updates_in_step


class UpdateSteps:
    """Mixed into a trainer of transformers, before it."""

    settings: Settings
    plan: BatchPlan
    guard: PlayerGuard
    adapter_names: tuple[str, ...]
    accelerator: Any
    model: Any
    optimizer: Any
    _metrics: Any
    _step: int
    """Micro-batches that this process has trained on; trl counts them."""
    _updates: Sequence[Update] = ()
    _number: int = 0
    _log_ratios: tuple[dict[int, float], ...] = ()

    def begin_updates(self, updates: Sequence[Update]) -> list[dict[str, Any]]:
        """Announce a step's updates to the guard; returns their micro-batches in the order of training."""
        self._updates, self._number, self._log_ratios = updates, 0, ()
        self.guard.begin(updates[0].adapters)
        return [batch for update in updates for batch in update.batches]

    @property
    def in_first_pass(self) -> bool:
        """True while the policy of the micro-batch's player is still that which sampled its tokens."""
        return self._updates[self._number].first_pass

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Train on one micro-batch; returns its loss as a mean over the passes, for the log."""
        place = self._step % self.plan.gradient_accumulation_steps + 1
        size = micro_batches_in_update(self.settings, self.plan)
        closes = place % size == 0 and place < self.plan.gradient_accumulation_steps
        if closes:
            self.accelerator.gradient_state._set_sync_gradients(True)
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        if closes:
            # Without effect under DeepSpeed, whose engine has made the update by now.
            self.optimizer.step()
            model.zero_grad()
            self.end_update()
        return loss / self.settings.updates_per_step

    def end_update(self) -> None:
        """Count and show what the guard did with an update, and announce the next one."""
        for name, norm in self.guard.finish().items():
            self._metrics["train"][f"{name}/grad_norm"].append(norm)
        done = self._updates[self._number]
        self._number += 1
        if self._number < updates_in_step(self.settings):
            if done.last_of_player:
                self._weigh_next(done)
            self.guard.again(self._updates[self._number].adapters)
            return
        self._metrics["train"]["grad_norm"].append(sum(norm**2 for norm in self.guard.norms.values()) ** 0.5)
        self._metrics["train"]["updates_dropped"].append(float(len(self.guard.dropped)))

    def logps_of(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return [rows, tokens] logprobs of a micro-batch under the adapter that is in use; no gradient."""
        raise NotImplementedError

    def _weigh_next(self, done: Update) -> None:
        # All ranks hold the same players' rows, but of different games; a game's rows may be on different ranks.
        ratios: dict[int, float] = {}
        if done.adapters:
            use_adapter(self.accelerator.unwrap_model(self.model), *done.adapters)
            for batch in done.batches:
                data = batch["grpo_batch"]
                ratios |= game_log_ratios(
                    self.logps_of(batch), data.old_per_token_logps, data.completion_mask, data.games
                )
        everywhere = {game: ratio for one in gather_object([ratios]) for game, ratio in one.items()}
        self._log_ratios = (*self._log_ratios, everywhere)
        for batch in self._updates[self._number].batches:
            data = batch["grpo_batch"]
            weights = game_weights(self._log_ratios, data.games).to(data.advantages.device)
            # w·(A − f) + f: the parts of KL and entropy are of this player's own policy, not of the game.
            data.advantages = data.advantages * weights
            if data.shaping is not None:
                data.advantages = data.advantages + data.shaping * (1 - weights)
            self._metrics["train"][f"{data.player}/game_weight"].append(weights.mean().item())
