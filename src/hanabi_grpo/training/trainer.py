"""Connects ms-swift's GRPO trainer to our training loop.

ms-swift and transformers provide arguments, model and template, the DeepSpeed configuration, the
optimizer's class, callbacks and `report_to`. `loop.train` replaces transformers' loop over batches.
These methods are overridden (`tests/conformance/test_ms_swift.py` trains through them and fails if
a new version no longer calls them):

- `_run_epoch`: a run is one epoch, which executes `loop.train`.
- `_init_training_state`: a resumed run continues to count from its checkpoint's step.
- `_prepare_gradient_checkpointing`: there may be several base models.
- `_prepare_vllm`: the server runs the engine, so nothing is prepared and vLLM is not imported.

Optimizer and schedule use ms-swift's own extension point, `PlayerOptimizers`.
"""

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from swift.optimizers import OptimizerCallback, optimizers_map
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from transformers import AutoTokenizer, Trainer

from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.runs.resume import read_resume
from hanabi_grpo.settings import Settings, deepspeed_stage
from hanabi_grpo.settings.base_models import base_models, bases_by_player
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.isolation import PlayerGuard, PlayerSchedule, player_groups
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.start_from import recorded_start
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.run import RunParts, TrainingRun
from hanabi_grpo.training.thoughts import text_of
from hanabi_grpo.training.validation import Validation

OPTIMIZER_PLUGIN = "hanabi_players"
"""Name of `PlayerOptimizers` among ms-swift's optimizers (--optimizer)."""
ZERO_STAGES_OF_SHARDED_GRADIENTS = (1, 2, 3)
ZERO_STAGE_OF_SHARDED_WEIGHTS = 3


class HanabiGRPOTrainer(GRPOTrainer):
    """Trains every player's adapter from games that the rollout server plays."""

    control: Any
    """transformers' `TrainerControl`, which it sets without a type."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ms-swift's arguments; `vllm_client` is a link that carries the settings."""
        self.link: Link = kwargs["vllm_client"]
        self.settings: Settings = self.link.settings
        settings = self.settings
        self.setups = {setup.spec.hash: setup for setup in played_setups(training_rows(settings))}
        self.adapter_names = adapters.adapter_names(settings.players, settings.adapters)
        self.resume = read_resume(self.link.run_folder)
        self.first_step = self.resume.step if self.resume is not None else 0
        """Number of steps finished before this process started."""
        self.validation = Validation(
            settings, self.link.run_folder, self.link.curves, self.first_step
        )
        self.run: TrainingRun | None = None
        """The run that the loop trains; None before the loop begins."""
        self._started_from = recorded_start(settings, self.resume)
        stage = deepspeed_stage(settings)
        has_whole_weights = stage != ZERO_STAGE_OF_SHARDED_WEIGHTS
        self.guard = PlayerGuard(
            max_norm=settings.max_grad_norm,
            sharded=stage in ZERO_STAGES_OF_SHARDED_GRADIENTS,
            report=self.report_incident,
            loss_scaled=settings.dtype == "float16",
        )
        super().__init__(*args, **kwargs)
        self.policy = Policy(
            self.model,
            self.adapter_names,
            temperature=settings.temperature,
            token_filter=settings.token_filter,
            has_whole_weights=has_whole_weights,
        )
        self._base_checksum = adapters.base_checksum(self.model)

    def _prepare_vllm(self) -> None:
        # Attributes that ms-swift reads elsewhere.
        self.use_fast_infer = True
        self.use_gym_env = True
        self.enable_server_multi_turn = True
        self.rollout_enable_lora = True
        self.vllm_use_async_engine = True
        self.enable_offload = False
        self.dynamic_num_samples = False
        self.base_sync_done = False
        self._last_loaded_step = -1

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        training_state = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.global_step = self.first_step
        return training_state

    def _run_epoch(self, model: torch.nn.Module, **_: Any) -> None:
        self.policy.train_through(model)
        self.run = TrainingRun(self._run_parts())
        train(self.run)
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        # A run is one epoch, however many epochs transformers computes from the dataset's length.
        self.control.should_training_stop = True

    def _run_parts(self) -> RunParts:
        tokenizers = other_tokenizers(self.settings)
        return RunParts(
            settings=self.settings,
            link=self.link,
            accelerator=self.accelerator,
            policy=self.policy,
            optimizer=self.optimizer,
            schedule=self.lr_scheduler,
            guard=self.guard,
            validation=self.validation,
            setups=self.setups,
            events=TrainerEvents(self),
            report=self.report_incident,
            pad_id=self._pad_id(tokenizers),
            end_id=self.processing_class.eos_token_id,
            token_text=text_of(self.processing_class),
            tokenizers=tokenizers,
            tokenizer=self.processing_class,
            max_steps=self.args.max_steps,
            first_step=self.first_step,
            resume_folder=self.resume.checkpoint if self.resume is not None else None,
            base_checksum=self._base_checksum,
            started_from=self._started_from,
        )

    def _pad_id(self, tokenizers: Mapping[str, Any]) -> int:
        """Return the padding token; the smallest id is a token of every base model."""
        pad_ids = [self.processing_class.pad_token_id]
        for tokenizer in tokenizers.values():
            has_pad = tokenizer.pad_token_id is not None
            pad_ids.append(tokenizer.pad_token_id if has_pad else tokenizer.eos_token_id)
        return int(min(pad_ids))

    def _prepare_gradient_checkpointing(self, model: torch.nn.Module) -> None:
        is_wanted = self.args.gradient_checkpointing
        super()._prepare_gradient_checkpointing(model)
        for part in adapters.parts_of(self.model)[1:]:
            # ms-swift clears the option once it has been applied.
            self.args.gradient_checkpointing = is_wanted
            super()._prepare_gradient_checkpointing(part.get_base_model())

    def report_incident(self, kind: str, message: str, **details: object) -> None:
        """Record an incident of the run, once for all processes."""
        if self.accelerator.is_main_process:
            self.link.incidents.record(kind, message, **details)

    def save_interrupted(self) -> str:
        """Save the last finished step of a run that is being stopped; returns what was saved."""
        if self.run is None:
            return "no step was finished, so there is nothing to save"
        return self.run.save_interrupted()


def other_tokenizers(settings: Settings) -> dict[str, Any]:
    """Return the tokenizer of each player whose base model is not player_0's."""
    first = base_models(settings)[0]
    read_once = functools.cache(
        lambda name: AutoTokenizer.from_pretrained(resolve_model(name)),
    )
    tokenizers = {}
    for player, name in bases_by_player(settings).items():
        if name != first:
            tokenizers[player] = read_once(name)
    return tokenizers


class TrainerEvents:
    """Forwards our loop's events to transformers' callbacks and logs, see `run.Events`."""

    def __init__(self, trainer: Trainer) -> None:
        """Take the trainer whose callbacks are called."""
        self._trainer = trainer

    @property
    def should_stop(self) -> bool:
        """Whether the run, or a callback, ends training after this step."""
        control = self._trainer.control
        return bool(control.should_training_stop or control.should_epoch_stop)

    @property
    def should_save(self) -> bool:
        """Whether SAVE_STEPS, the end or a callback asks for a checkpoint."""
        return bool(self._trainer.control.should_save or self.should_stop)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return transformers' context for computing a loss."""
        return self._trainer.compute_loss_context_manager()

    def begin_step(self) -> None:
        """Signal that a step begins."""
        self._tell("on_step_begin")

    def end_micro_batch(self) -> None:
        """Signal that a gradient was accumulated and no update follows yet."""
        self._tell("on_substep_end")

    def before_update(self) -> None:
        """Signal that an update follows."""
        self._tell("on_pre_optimizer_step")

    def after_update(self) -> None:
        """Signal that an update was made."""
        self._tell("on_optimizer_step")

    def end_step(self, num_steps: int, *, is_last: bool) -> None:
        """Signal that `num_steps` steps are finished, and whether this was the last one."""
        state = self._trainer.state
        state.global_step = num_steps
        state.epoch = num_steps / state.max_steps
        self._tell("on_step_end")
        if is_last:
            self._trainer.control.should_training_stop = True

    def log(self, figures: Mapping[str, float]) -> None:
        """Pass a step's figures to all monitors."""
        # transformers' summary of the run divides this by the number of steps.
        self._trainer._total_loss_scalar += figures.get("loss", 0.0)
        self._trainer.log(dict(figures))

    def end_save(self, folder: Path) -> None:
        """Signal that a checkpoint was written."""
        self._trainer.state.last_model_checkpoint = str(folder)
        self._tell("on_save")

    def _tell(self, event: str) -> None:
        trainer = self._trainer
        notify = getattr(trainer.callback_handler, event)
        trainer.control = notify(trainer.args, trainer.state, trainer.control)


class PlayerOptimizers(OptimizerCallback):
    """Builds the optimizer that ms-swift chooses, with one group and one schedule per player."""

    trainer: HanabiGRPOTrainer

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the optimizer that --optim names."""
        trainer = self.trainer
        kind, options = trainer.get_optimizer_cls_and_kwargs(self.args, trainer.model)
        groups = player_groups(trainer.model, trainer.adapter_names, trainer.settings.rate_of)
        for group in groups:
            group["weight_decay"] = self.args.weight_decay
        optimizer: torch.optim.Optimizer = kind(groups, **options)
        trainer.guard.watch(optimizer)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer
    ) -> PlayerSchedule:
        """Make the schedule, which each player follows at its own count of updates."""
        return PlayerSchedule(
            optimizer,
            self.trainer.settings.lr_scheduler_type,
            num_training_steps=num_training_steps,
            num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
        )


def register_optimizers() -> None:
    """Register `PlayerOptimizers` with ms-swift."""
    optimizers_map[OPTIMIZER_PLUGIN] = PlayerOptimizers
