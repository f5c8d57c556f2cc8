"""ms-swift's GRPO trainer, taught that a batch belongs to players.

What is overridden, and why (`tests/conformance/test_ms_swift.py` fails when a new version moves one of these):
- `get_train_dataloader`: a deal's players and games stay together; a resumed run starts at its next deal.
- `_generate_and_score_completions`: games come from the rollout server as token ids; no re-encoding, no
  grouping of rewards by position, a player without a turn is left out.
- `_get_per_token_logps_and_entropies`: the micro-batch's player chooses the adapter, and parity is checked.
- `_move_model_to_vllm`: never called; adapters are pushed over HTTP before the games.
- `create_optimizer`, `create_scheduler`, `_get_grad_norm`: each player is a group with a norm and a count of its own.
- `_init_training_state`, `_prepare_for_training`: a resume restores every player, whatever holds the optimizer.
- `_save_checkpoint`: ms-swift saves an adapter named `default` only.
"""

import logging
import time
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.rlhf_trainers.utils import get_gather_if_zero3_context, identity_data_collator
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from hanabi_grpo.advantages import ESTIMATORS
from hanabi_grpo.checkpoints import rotate
from hanabi_grpo.errors import NonFiniteError, ParityError, RunFolderError
from hanabi_grpo.metrics import episode_metrics, step_warnings
from hanabi_grpo.partners import own_seats
from hanabi_grpo.records import write_episodes
from hanabi_grpo.resume import TRAINER_STATE, read_resume
from hanabi_grpo.settings import Settings, batch_plan, deepspeed_stage
from hanabi_grpo.training import adapters
from hanabi_grpo.training.batching import PlayerBatch, plan_batches, players_with_data, usable_groups
from hanabi_grpo.training.checkpoints import SAVE_TRIES, save_checkpoint
from hanabi_grpo.training.deals import DealSampler
from hanabi_grpo.training.isolation import BAD_STEPS_IN_A_ROW, PlayerGuard, player_groups
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.training.parity import ParityGate
from hanabi_grpo.training.schedule import PlayerSchedule
from hanabi_grpo.training.training_state import (
    OptimizerState,
    load_moments,
    random_state,
    restore_counts,
    restore_random_state,
)
from hanabi_grpo.types import DroppedGame, Episode, adapter_of

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
        self.resume = read_resume(link.run_folder)
        self.pushed_version: int | None = None
        self._played_at = time.perf_counter()
        self._empty_steps = self.failed_saves = 0
        stage = deepspeed_stage(self.settings)
        self.guard = PlayerGuard(
            max_norm=None if stage == 3 else self.settings.max_grad_norm, sharded=stage in (1, 2), report=self._incident
        )
        self._resumable = stage != 3
        super().__init__(*args, **kwargs)
        self.add_callback(_AfterStep(self))
        self._base_checksum = adapters.base_checksum(self.model)

    def get_train_dataloader(self, skip_batches: int = 0) -> DataLoader:
        """Return every step's deals, once per micro-step; the same on all ranks, so nothing is sharded."""
        sampler = DealSampler(
            first_step=self.first_step,
            num_steps=self.args.max_steps,
            deals_per_step=self.plan.deals,
            micro_steps=self.plan.gradient_accumulation_steps,
        )
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=identity_data_collator)

    @property
    def first_step(self) -> int:
        """Optimizer steps that were made before this process started."""
        return self.resume.step if self.resume else 0

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Make the optimizer that ms-swift's options name, with one group per player."""
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        groups = [
            {**group, "weight_decay": self.args.weight_decay} for group in player_groups(self.model, self.adapter_names)
        ]
        self._optimizer_ori = self.optimizer = kind(groups, **options)
        self.guard.attach(self.optimizer)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> PlayerSchedule:
        """Make the schedule; each player is at its own count of updates."""
        warmup = self.args.get_warmup_steps(num_training_steps)
        self.lr_scheduler = PlayerSchedule(
            self._optimizer_ori, self.settings.lr_scheduler_type, num_steps=num_training_steps, num_warmup_steps=warmup
        )
        return self.lr_scheduler

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        found = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.global_step = self.first_step
        return found

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        self._restore()
        return prepared

    def _restore(self) -> None:
        if self.resume is None:
            return
        folder = self.resume.checkpoint
        model = self.accelerator.unwrap_model(self.model)
        for name in self.adapter_names:
            adapters.load_adapter(model, name, folder / name)
        state = OptimizerState(model, self.optimizer)
        state.restore(load_moments(folder / TRAINER_STATE))
        restore_counts(folder / TRAINER_STATE, state.groups)
        self.lr_scheduler.refresh()
        rank = self.accelerator.process_index
        if not restore_random_state(folder / TRAINER_STATE, rank):
            logger.warning("process %d: the checkpoint has no random state for it; it keeps its own", rank)
        logger.info("resumed from %s: the next step is number %d", folder, self.first_step + 1)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        start = time.perf_counter()
        version = self.push()
        pushed = time.perf_counter()
        groups, dropped, partner_names = self._play(inputs, version)
        played = time.perf_counter()
        groups, problems = usable_groups(groups, dropped)
        own = own_seats(self.settings.players, self.adapter_names, version)
        self.guard.begin({adapter_of(player, self.adapter_names) for player in players_with_data(groups, own)})
        batches = plan_batches(
            groups,
            own=own,
            micro_batches_per_player=self.plan.micro_batches_per_player,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            estimator=ESTIMATORS[self.settings.advantage],
            pad_id=self.processing_class.pad_token_id,
            device=self.accelerator.device,
        )
        if self.beta:
            self._add_reference(batches)
        self._record(groups, problems, version, own, partner_names)
        self._time({"push": pushed - start, "rollout": played - pushed, "train": start - self._played_at})
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

    def _play(
        self, deals: list[dict[str, Any]], version: int
    ) -> tuple[list[list[Episode]], tuple[DroppedGame, ...], dict[str, str]]:
        answer = None
        if self.accelerator.is_main_process:
            result = self.link.play(deals, self.adapter_names, version)
            answer = (result.groups, result.dropped, self.link.partners.names)
        return broadcast_object_list([answer], from_process=0)[0]

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

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        # The guard records each player's own norm; ms-swift's version drops everybody's gradient for one bad value.
        return None

    def after_step(self) -> None:
        """Count and show what the guard did with the step that was just made."""
        self.guard.finish()
        for name, norm in self.guard.norms.items():
            self._metrics["train"][f"{name}/grad_norm"].append(norm)
        self._metrics["train"]["grad_norm"].append(sum(norm**2 for norm in self.guard.norms.values()) ** 0.5)
        self._metrics["train"]["updates_dropped"].append(float(len(self.guard.dropped)))

    def _record(
        self,
        groups: list[list[Episode]],
        problems: list[str],
        version: int,
        own: tuple[str, ...],
        partner_names: dict[str, str],
    ) -> None:
        missing = self.plan.games - sum(len(group) for group in groups)
        metrics = episode_metrics(
            groups,
            games_dropped=missing,
            groups_dropped=self.plan.deals - len(groups),
            own=own,
            partners=partner_names if self.settings.partners else None,
        )
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        for problem in problems:
            self._incident("games_dropped", problem, step=version)
        for warning in step_warnings(metrics, len(groups)):
            logger.warning("step %d: %s", version + 1, warning)
        if self.accelerator.is_main_process:
            try:
                self.link.copy_log()
                if version % self.settings.episodes_every == 0:
                    write_episodes(self.link.run_folder, version, groups)
            except OSError as error:
                # A full disk, or a server that refuses its log: a record that is lost stops no run.
                self._incident("records_failed", f"{self.link.run_folder}: {error.strerror or error}", step=version)
        self._empty_steps = 0 if groups else self._empty_steps + 1
        if not groups:
            self._incident("step_dropped", "no group of games could be used; nothing moves in this step", step=version)
        if self._empty_steps >= BAD_STEPS_IN_A_ROW:
            raise NonFiniteError(
                f"{self._empty_steps} steps in a row had no usable game; the last reasons: {'; '.join(problems[:3])}. "
                "Look at the server's log, and go on with RESUME=latest."
            )

    def _time(self, seconds: dict[str, float]) -> None:
        for phase, value in seconds.items():
            self._metrics["train"][f"time/{phase}"].append(value)

    def _incident(self, kind: str, message: str, **details: object) -> None:
        if self.accelerator.is_main_process:
            self.link.incidents.record(kind, message, **details)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Gathering is for all ranks, writing for one; how it went, for all again.
        step = int(self.state.global_step)
        state = OptimizerState(self.accelerator.unwrap_model(self.model), self.optimizer) if self._resumable else None
        moments = state.collect() if state else None
        random_states = gather_object([random_state()])
        problem = None
        with self._whole_adapters():
            if self.accelerator.is_main_process:
                try:
                    self._write_checkpoint(step, moments, state.groups if state else [], random_states)
                except RunFolderError as error:
                    problem = str(error)
        problem = broadcast_object_list([problem], from_process=0)[0]
        self.failed_saves = self.failed_saves + 1 if problem else 0
        if problem:
            self._incident(
                "save_failed", f"{problem} ({self.failed_saves} in a row, {SAVE_TRIES} stop the run)", step=step
            )
            if self.failed_saves >= SAVE_TRIES:
                raise RunFolderError(
                    f"{problem} {SAVE_TRIES} saves in a row failed; the earlier checkpoints are complete. Make room, "
                    "then go on with RESUME=latest."
                )

    def _write_checkpoint(self, step: int, moments: Any, groups: list[Any], random_states: list[Any]) -> None:
        model = self.accelerator.unwrap_model(self.model)
        checksum = adapters.base_checksum(model)
        if checksum != self._base_checksum:
            raise ParityError(
                "the base model's weights changed during training "
                f"(checksum {self._base_checksum}, now {checksum}); only adapters may. "
                "Nothing was saved; look for a merge or an optimizer over base weights."
            )
        facts = {
            "board_hashes": self.link.spec_hashes,
            "model": self.settings.model,
            "base_checksum": checksum,
            **self.link.server_facts,
        }
        folder = save_checkpoint(
            model,
            self.adapter_names,
            self.link.run_folder,
            step,
            facts,
            moments=moments,
            groups=groups,
            random_states=random_states,
        )
        self.state.last_model_checkpoint = str(folder)
        rotate(self.link.run_folder, self.settings.save_total_limit)

    def save_now(self) -> str:
        """Save the last finished step when a run is interrupted; returns what was done, for the log."""
        step = int(self.state.global_step)
        if step == self.first_step:
            return "no step was finished, so there is nothing to save"
        if self.guard.stepping:
            return "the update was cut in the middle; the newest checkpoint in the run folder stays the last one"
        if self.accelerator.num_processes > 1:
            return "the newest checkpoint in the run folder stays the last one (several processes were interrupted)"
        if not (self.link.run_folder / f"checkpoint-{step}").exists():
            self._save_checkpoint(None, None)
        if self.failed_saves:
            return f"step {step} could not be saved; the earlier checkpoints are complete"
        return f"step {step} is saved in {self.link.run_folder / f'checkpoint-{step}'}"


class _AfterStep(TrainerCallback):
    """Runs on every rank after each optimizer step, and asks for another save after a failed one."""

    def __init__(self, trainer: HanabiGRPOTrainer) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = control.should_save or self._trainer.failed_saves > 0
