"""ms-swift's GRPO trainer, taught that a batch belongs to players.

What is overridden, and why (`tests/conformance/test_ms_swift.py` fails when a new version moves one of these):
- `get_train_dataloader`: a deal's players and games stay together.
- `_generate_and_score_completions`: games come from the rollout server as token ids; no re-encoding, no
  grouping of rewards by position, a player without a turn is left out.
- `_get_per_token_logps_and_entropies`: the micro-batch's player chooses the adapter, and parity is checked.
- `_move_model_to_vllm`: never called; adapters are pushed over HTTP before the games.
- `_clip_grad_norm`: each player's gradient has its own norm, and none where it had no data.
- `_save_checkpoint`: ms-swift saves an adapter named `default` only.
"""

import logging
import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.rlhf_trainers.utils import get_gather_if_zero3_context, identity_data_collator
from torch.utils.data import DataLoader

from hanabi_grpo.advantages import ESTIMATORS
from hanabi_grpo.errors import ParityError
from hanabi_grpo.metrics import episode_metrics
from hanabi_grpo.records import write_episodes
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.training import adapters
from hanabi_grpo.training.batching import PlayerBatch, plan_batches
from hanabi_grpo.training.checkpoints import rotate_checkpoints, save_checkpoint
from hanabi_grpo.training.deals import DealSampler
from hanabi_grpo.training.isolation import clip_per_player, parameters_by_adapter
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.parity import ParityGate
from hanabi_grpo.types import Episode, adapter_of

logger = logging.getLogger(__name__)


class HanabiGRPOTrainer(GRPOTrainer):
    """Trains every player's adapter from games that the rollout server plays."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ms-swift's arguments; `vllm_client` is a `ServerLink` that carries the settings."""
        link: ServerLink = kwargs["vllm_client"]
        self.link = link
        self.settings: Settings = link.settings
        self.plan = batch_plan(self.settings)
        self.adapter_names = adapters.adapter_names(self.settings.players, self.settings.adapters)
        self.gate = ParityGate(self.settings.parity_tolerance)
        self.pushed_version: int | None = None
        self._played_at = time.perf_counter()
        self._with_data: set[str] = set()
        super().__init__(*args, **kwargs)
        self._base_checksum = adapters.base_checksum(self.model)

    def get_train_dataloader(self, skip_batches: int = 0) -> DataLoader:
        """Return every step's deals, once per micro-step; the same on all ranks, so nothing is sharded."""
        if skip_batches:
            raise NotImplementedError("resuming in the middle of a run is not available yet; start a new OUTPUT_DIR")
        sampler = DealSampler(
            num_steps=self.args.max_steps,
            deals_per_step=self.plan.deals,
            micro_steps=self.plan.gradient_accumulation_steps,
        )
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=identity_data_collator)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        start = time.perf_counter()
        version = self.push()
        pushed = time.perf_counter()
        groups = self._play(inputs, version)
        played = time.perf_counter()
        batches = plan_batches(
            groups,
            num_players=self.settings.players,
            micro_batches_per_player=self.plan.micro_batches_per_player,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            estimator=ESTIMATORS[self.settings.advantage],
            pad_id=self.processing_class.pad_token_id,
            device=self.accelerator.device,
        )
        self._with_data = {
            adapter_of(batch["grpo_batch"].player, self.adapter_names)
            for batch in batches
            if batch["grpo_batch"].completion_mask.any()
        }
        if self.beta:
            self._add_reference(batches)
        self._record(
            groups, version, {"push": pushed - start, "rollout": played - pushed, "train": start - self._played_at}
        )
        self._played_at = time.perf_counter()
        return batches

    def push(self) -> int:
        """Serve the current weights; returns their version, the number of optimizer steps behind them."""
        version = int(self.state.global_step)
        if self.pushed_version != version:
            with self._whole_adapters():
                if self.accelerator.is_main_process:
                    self.link.push(self.accelerator.unwrap_model(self.model), self.adapter_names, version)
            self.pushed_version = version
        return version

    def _whole_adapters(self) -> AbstractContextManager[Any]:
        # Under ZeRO-3 a rank holds only its shard of each parameter.
        parameters = [parameter for name, parameter in self.model.named_parameters() if "lora_" in name]
        return get_gather_if_zero3_context(self)(parameters)

    def _play(self, deals: list[dict[str, Any]], version: int) -> list[list[Episode]]:
        groups = None
        if self.accelerator.is_main_process:
            groups = self.link.play(deals, self.adapter_names, version)
        return broadcast_object_list([groups], from_process=0)[0]

    def _get_per_token_logps_and_entropies(
        self, model: Any, model_inputs: dict[str, Any], grpo_batch: PlayerBatch, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        unwrapped = self.accelerator.unwrap_model(self.model)
        adapters.use_adapter(unwrapped, adapter_of(grpo_batch.player, self.adapter_names))
        logps, entropies = super()._get_per_token_logps_and_entropies(model, model_inputs, grpo_batch, **kwargs)
        gap = self.gate.check(
            grpo_batch.player,
            self.pushed_version or 0,
            logps,
            grpo_batch.rollout_per_token_logps,
            grpo_batch.completion_mask,
        )
        self._metrics["train"][f"{grpo_batch.player}/parity"].append(gap)
        return logps, entropies

    def _add_reference(self, batches: list[dict[str, Any]]) -> None:
        with torch.no_grad(), adapters.base_only(self.accelerator.unwrap_model(self.model)):
            for batch in batches:
                inputs = dict(batch["model_inputs"])
                # ms-swift's own pass: the base model is not the policy that sampled, so there is no parity to check.
                batch["grpo_batch"].ref_per_token_logps = super()._get_per_token_logps_and_entropies(
                    self.model, inputs, batch["grpo_batch"]
                )[0]

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.is_deepspeed_enabled:
            # DeepSpeed clips inside its own optimizer, over all players together.
            return super()._clip_grad_norm(model)
        parameters = parameters_by_adapter(self.accelerator.unwrap_model(self.model), self.adapter_names)
        norms = clip_per_player(parameters, self._with_data, self.args.max_grad_norm)
        for name, norm in norms.items():
            self._metrics["train"][f"{name}/grad_norm"].append(norm)
        return sum(norm**2 for norm in norms.values()) ** 0.5

    def _record(self, groups: list[list[Episode]], version: int, seconds: dict[str, float]) -> None:
        metrics = episode_metrics(groups)
        metrics |= {f"time/{phase}": value for phase, value in seconds.items()}
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        if self.accelerator.is_main_process:
            self.link.copy_log()
            if version % self.settings.episodes_every == 0:
                write_episodes(self.link.run_folder, version, groups)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = int(self.state.global_step)
        with self._whole_adapters():
            if self.accelerator.is_main_process:
                unwrapped = self.accelerator.unwrap_model(self.model)
                checksum = adapters.base_checksum(unwrapped)
                if checksum != self._base_checksum:
                    raise ParityError(
                        "the base model's weights changed during training "
                        f"(checksum {self._base_checksum}, now {checksum}); only adapters may. "
                        "Nothing was saved; look for a merge or an optimizer over base weights."
                    )
                state = {"board_hashes": self.link.spec_hashes, "model": self.settings.model, "base_checksum": checksum}
                folder = save_checkpoint(unwrapped, self.adapter_names, self.link.run_folder, step, state)
                self.state.last_model_checkpoint = str(folder)
                rotate_checkpoints(self.link.run_folder, self.settings.save_total_limit)
        self.accelerator.wait_for_everyone()

    def save_now(self) -> str:
        """Save the last finished step when a run is interrupted; returns what was done, for the log."""
        step = int(self.state.global_step)
        if not step:
            return "no step was finished, so there is nothing to save"
        if self.accelerator.num_processes > 1:
            return "the newest checkpoint in the run folder stays the last one (several processes were interrupted)"
        if not (self.link.run_folder / f"checkpoint-{step}").exists():
            self._save_checkpoint(None, None)
        return f"step {step} is saved in {self.link.run_folder / f'checkpoint-{step}'}"
