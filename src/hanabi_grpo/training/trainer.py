"""ms-swift's GRPO trainer, taught that a batch belongs to players.

What is overridden, and why (`tests/conformance/test_ms_swift.py` fails when a new version moves one
of these):
- `get_train_dataloader`: a task's players and games stay together; a resumed run starts at its next
  task.
- `_generate_and_score_completions`: games come from the rollout server as token ids; no
  re-encoding, no grouping of rewards by position, a player without a turn is left out.
- `compute_loss`: the micro-batch's player chooses the adapter, its replies' logprobs are computed
  (`model.forward`) and compared with the sampler's (`mismatch`), and the loss is the one in `loss`.
- `_prepare_vllm`: the engine is the server's, so nothing is prepared and vLLM is not imported.
- `_move_model_to_vllm`: never called; adapters are synced over HTTP before the games (`overlap`:
  beside the games).
- `training_step`: several updates from one step's games, micro-batches by tokens (`updates`).
- `create_optimizer`, `create_scheduler`, `_get_grad_norm`: each player is a group with a norm and a
  count of its own.
- `_init_training_state`, `_prepare_for_training`: a resume restores every player, whatever holds
  the optimizer.
- `_save_checkpoint`: ms-swift saves an adapter named `default` only (`saving`).
"""

import logging
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.rlhf_trainers.utils import get_gather_if_zero3_context, identity_data_collator
from torch.utils.data import DataLoader

from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.rollout.recordings import write_episodes
from hanabi_grpo.runs.resume import TRAINER_STATE, read_resume
from hanabi_grpo.settings import Settings, batch_plan, deepspeed_stage
from hanabi_grpo.settings.partners import own_seats, seated
from hanabi_grpo.training.batching import PlayerBatch, next_baselines, plan_batches, useful_share
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.isolation import (
    BAD_STEPS_IN_A_ROW,
    PlayerGuard,
    PlayerSchedule,
    player_groups,
)
from hanabi_grpo.training.loss import LOSS_METRICS, PolicyLoss, add_entropy_bonus
from hanabi_grpo.training.metrics import episode_metrics, peak_gib, utilisation
from hanabi_grpo.training.mismatch import RelativeMismatch, check_mismatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import join_lora_products, reply_logps
from hanabi_grpo.training.model.output_head import CHUNK, computes_logits
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from hanabi_grpo.training.model.start_from import recorded_start
from hanabi_grpo.training.overlap import PlayAhead, StepGames
from hanabi_grpo.training.resampling import UsedGames, resample
from hanabi_grpo.training.saving import (
    CheckpointSaving,
    OptimizerState,
    TrainingState,
    restore_random_state,
)
from hanabi_grpo.training.tasks import step_tasks
from hanabi_grpo.training.updates import AfterStep, MicroStep, StepUpdates, order_updates
from hanabi_grpo.training.validation import Validation
from hanabi_grpo.training.valuing import Valuing
from hanabi_grpo.types import adapter_of

logger = logging.getLogger(__name__)


class HanabiGRPOTrainer(StepUpdates, Valuing, RelativeMismatch, CheckpointSaving, GRPOTrainer):
    """Trains every player's adapter from games that the rollout server plays."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ms-swift's arguments; `vllm_client` is a link that carries the settings."""
        self.link: Link = kwargs["vllm_client"]
        self.settings: Settings = self.link.settings
        self.plan = batch_plan(self.settings)
        self.setups = {one.spec.hash: one for one in played_setups(training_rows(self.settings))}
        self.adapter_names = adapters.adapter_names(self.settings.players, self.settings.adapters)
        self.loss = PolicyLoss(self.settings)
        self.ahead = PlayAhead(self.link, self.adapter_names)
        self.resume = read_resume(self.link.run_folder)
        self.watch_rounding({})
        self.started_from = recorded_start(self.settings, self.resume)
        self.synced_version: int | None = None
        self._played_at = time.perf_counter()
        self._empty_steps = self._tokens = 0
        stage = deepspeed_stage(self.settings)
        self.guard = PlayerGuard(
            max_norm=None if stage == 3 else self.settings.max_grad_norm,
            sharded=stage in (1, 2),
            report=self._incident,
            loss_scaled=self.settings.dtype == "float16",
        )
        self._resumable = stage != 3
        setups = list(self.setups.values())
        self.validation = Validation(self.settings, self.link.run_folder, setups, self.first_step)
        self.baselines: dict[int, dict[str, float]] = {}
        """Moving ones by the number of steps before them; an interrupt may come within a step."""
        super().__init__(*args, **kwargs)
        self.add_callback(AfterStep(self))
        if stage != 3:
            join_lora_products(self.model)
        # ZeRO-3 gathers weights for the engine's own calls alone, so there is no trial.
        self.shared = stage != 3 and share_prefixes(self.model)
        whole = (
            "under ZeRO-3 the head's weights are not whole"
            if stage == 3
            else computes_logits(self.model)
        )
        self.whole_logits = whole is not None
        if whole:
            logger.warning(
                "logits are held for a whole micro-batch, not %d tokens at a time: %s", CHUNK, whole
            )
        self._base_checksum = adapters.base_checksum(self.model)
        self.make_critics(setups)

    def _prepare_vllm(self) -> None:
        # What ms-swift reads of its client elsewhere.
        self.use_fast_infer = self.use_gym_env = self.enable_server_multi_turn = True
        self.rollout_enable_lora = self.vllm_use_async_engine = True
        self.enable_offload = self.dynamic_num_samples = self.base_sync_done = False
        self._last_loaded_step = -1

    def get_train_dataloader(self, skip_batches: int = 0) -> DataLoader:
        """Return every step's tasks, once per micro-step; the same on all ranks, so nothing is
        sharded.
        """
        steps = (
            step_tasks(step, self.plan.tasks)
            for step in range(self.first_step, self.args.max_steps)
        )
        batches = [tasks for tasks in steps for _ in range(self.plan.gradient_accumulation_steps)]
        return DataLoader(
            self.train_dataset, batch_sampler=batches, collate_fn=identity_data_collator
        )

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Make the optimizer that ms-swift's options name, with one group per player."""
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        groups = player_groups(self.model, self.adapter_names)
        groups = [{**group, "weight_decay": self.args.weight_decay} for group in groups]
        self._optimizer_ori = self.optimizer = kind(groups, **options)
        self.optimizer.register_step_pre_hook(self.guard.before_step)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> PlayerSchedule:
        """Make the schedule; each player is at its own count of updates."""
        self.lr_scheduler = PlayerSchedule(
            self._optimizer_ori,
            self.settings.lr_scheduler_type,
            num_training_steps=num_training_steps,
            num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
        )
        return self.lr_scheduler

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        found = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.global_step = self.first_step
        return found

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.resume is not None:
            self._restore(self.resume.checkpoint)
        return prepared

    def _restore(self, folder: Path) -> None:
        model = self.accelerator.unwrap_model(self.model)
        for name in self.adapter_names:
            adapters.load_adapter(model, name, folder / name)
        saved = TrainingState.load(folder / TRAINER_STATE)
        OptimizerState(model, self.optimizer).restore(saved)
        self.baselines = {self.first_step: dict(saved.baselines)}
        self.watch_rounding(saved.mismatch)
        if self.critics:
            self.critics.restore(saved.critics)
        self.lr_scheduler.refresh()
        rank = self.accelerator.process_index
        if rank < len(saved.random_states):
            restore_random_state(saved.random_states[rank])
        else:
            logger.warning(
                "process %d: the checkpoint has no random state for it; it keeps its own", rank
            )
        logger.info("resumed from %s: the next step is number %d", folder, self.first_step + 1)

    def _generate_and_score_completions(self, inputs: list[TaskRow]) -> list[MicroStep]:
        start = time.perf_counter()
        version = self.sync_weights()
        synced = time.perf_counter()
        games, used, partner_names, measured, active, self.is_last_step = self._play(
            inputs, version
        )
        groups = used.groups
        own, players, trained = self._seats(games.version, active)
        before = self.baselines.get(version, {})
        measured |= self.look(groups, own, players, version)
        batches = plan_batches(
            groups,
            own=trained,
            players=players,
            micro_batches_per_player=self.plan.micro_batches_per_player,
            tokens_per_micro_batch=self.plan.tokens_per_micro_batch,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            estimator=self.estimator(before),
            unit=self.settings.loss_unit,
            shared=self.shared,
            pad_id=self.processing_class.pad_token_id,
            device=self.accelerator.device,
        )
        # All own players: the baseline of one that rests moves on.
        self.baselines = {version: before, version + 1: next_baselines(before, used.drawn, own)}
        self.compare_policies(batches, version, games.version)
        if games.version != version:
            self._recall(batches, games.version)
        if self.beta:
            with adapters.base_only(self.accelerator.unwrap_model(self.model)):
                for batch in batches:
                    batch["grpo_batch"].ref_per_token_logps = self.logps_of(batch)
        if bonus := self.settings.entropy_bonus:
            # Exploration ends with learning: the target falls as the learning rate does.
            if (target := self.settings.entropy_target) is not None:
                target *= self._get_learning_rate() / self.args.learning_rate
            add_entropy_bonus(batches, bonus, groups, trained, players, target)
        data = [batch["grpo_batch"] for batch in batches]
        moving = {adapter_of(one.player, self.adapter_names) for one in data if one.has_data}
        updates = order_updates(
            batches, self.settings, step=version, adapters=self.adapter_names, active=moving
        )
        self._record(used, version, own, partner_names)
        self._add(measured)
        if groups and not moving:
            said = (
                "no trained player had a turn in any game; does a partner end them on its "
                "first move?"
            )
            logger.warning("step %d: nothing moves: %s", version + 1, said)
        learning = start - self._played_at
        self._add(
            {
                "time/push": synced - start,
                "time/rollout": games.rollout_seconds,
                "time/train": learning,
            }
        )
        self._measure_load(batches, games.rollout_seconds, learning)
        if self.settings.overlap:
            self._add(
                {"time/wait": games.wait_seconds, "staleness": float(version - games.version)}
            )
        self._played_at = time.perf_counter()
        self._add({"tokens/useful_share": useful_share(batches)})
        if prompt_tokens := games.result.prompt_tokens:
            self._add({"tokens/cached_share": games.result.cached_tokens / prompt_tokens})
        return self.begin_updates(updates)

    def sync_weights(self) -> int:
        """Serve the current weights; returns their version, the number of optimizer steps behind
        them.
        """
        version = int(self.state.global_step)
        if self.synced_version != version:
            with self._whole_adapters():
                if self.accelerator.is_main_process:
                    self.link.push(
                        self.accelerator.unwrap_model(self.model), self.adapter_names, version
                    )
            self.synced_version = version
            if self.settings.overlap or self.relative:
                self.kept.keep(self.accelerator.unwrap_model(self.model), version)
        return version

    def _whole_adapters(self) -> AbstractContextManager[Any]:
        # Under ZeRO-3 a rank holds only its shard of each parameter.
        parameters = [
            parameter for name, parameter in self.model.named_parameters() if "lora_" in name
        ]
        return get_gather_if_zero3_context(self)(parameters)

    def _seats(
        self, version: int, active: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return per seat the word of who sits there at a version, its player, and the word if that
        player learns.
        """
        swap_every = self.settings.swap_every
        own = own_seats(self.settings.players, self.adapter_names, version, swap_every)
        players = seated(self.settings.players, version, swap_every)
        # A seat that nobody holds: its player's sequences stay out of the batch, and it gets a row
        # without loss.
        trained = tuple(
            word if player in active else "" for player, word in zip(players, own, strict=True)
        )
        return own, players, trained

    def _play(
        self, tasks: list[TaskRow], version: int
    ) -> tuple[StepGames, UsedGames, dict[str, str], dict[str, float], tuple[str, ...], bool]:
        answer = None
        if self.accelerator.is_main_process:
            games = self.ahead.take(tasks, version)
            if self.settings.overlap and version + 1 < self.args.max_steps:
                following = [
                    self.train_dataset[number]
                    for number in step_tasks(version + 1, self.plan.tasks)
                ]
                self.ahead.ask(following, version)
            measured, validation = self.measure(version), self.validation
            active, ends_run = validation.active, validation.ends_run(version)
            trained = self._seats(games.version, active)[2]
            used = resample(
                self.link, self.adapter_names, tasks, games.result, version=version, trained=trained
            )
            answer = (
                games,
                used,
                self.link.partner_names,
                measured | used.metrics,
                active,
                ends_run,
            )
        return broadcast_object_list([answer], from_process=0)[0]

    def measure(self, version: int) -> dict[str, float]:
        """Return what is measured of a version beside its training games, on the main process; see
        `Validation`.
        """
        found: dict[str, float] = {}
        if (every := self.settings.exploit_every) and version % every == 0:
            found |= self.link.exploited(self.adapter_names, version)
        if self.validation.is_due(version):
            played = self.link.validated(self.validation.tasks(), self.adapter_names, version)
            found |= self.validation.add(version, played.groups)
        return found

    def _recall(self, batches: list[dict[str, Any]], version: int) -> None:
        # What the ratio divides by, and what is compared with the sampler, is the policy that
        # sampled.
        start = time.perf_counter()
        with self.kept.using(self.accelerator.unwrap_model(self.model), version):
            for batch in batches:
                data = batch["grpo_batch"]
                self._use_adapter_of(data)
                data.old_per_token_logps = self.logps_of(batch)
                self._check_mismatch(data, data.old_per_token_logps, version)
        self._add({"time/recall": time.perf_counter() - start})

    def _use_adapter_of(self, data: PlayerBatch) -> None:
        name = adapter_of(data.player, self.adapter_names)
        adapters.use_adapter(self.accelerator.unwrap_model(self.model), name)

    def _check_mismatch(self, data: PlayerBatch, logps: torch.Tensor, version: int) -> None:
        sampler, tolerance = data.rollout_per_token_logps, self.settings.parity_tolerance
        gap = check_mismatch(
            data.player, version, logps, sampler, data.completion_mask, tolerance=tolerance
        )
        self._add({f"{data.player}/parity": gap})

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return the loss of one player's micro-batch, times what transformers' loop divides by."""
        data = inputs["grpo_batch"]
        loss, measured = self.loss(
            self.new_logps(model, inputs), data, self.accelerator.num_processes
        )
        everywhere = self.accelerator.gather(torch.stack([*measured.values()]).detach()[None])
        for name, values in zip(measured, everywhere.unbind(1), strict=True):
            self._add({metric: over(values).item() for metric, over in LOSS_METRICS[name].items()})
        # A mean over micro-steps is not wanted: the loss is a share of the step's already.
        return loss * self.current_gradient_accumulation_steps

    def new_logps(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        """Return [rows, tokens] logprobs under the micro-batch's own adapter, with a gradient."""
        data = batch["grpo_batch"]
        self._use_adapter_of(data)
        logps = self._reply_logps(model, batch)
        if self.in_first_pass and data.old_per_token_logps is None:
            # What later passes, and the players after this one, compare with.
            data.old_per_token_logps = logps.detach()
            self._check_mismatch(data, logps, self.synced_version or 0)
        return logps

    def logps_of(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return logprobs under the adapter that is in use, without a gradient."""
        # This is not the policy that sampled, so there is no mismatch to look for.
        with torch.no_grad():
            return self._reply_logps(self.model, batch)

    def _reply_logps(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        ids, data = batch["model_inputs"]["input_ids"], batch["grpo_batch"]
        unwrapped = self.accelerator.unwrap_model(self.model)
        mask, whole = data.completion_mask, self.whole_logits
        return reply_logps(
            model, unwrapped, ids, mask, self.temperature, data.tree, whole_logits=whole
        )

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        # The guard records each player's own norm; ms-swift's version drops everybody's gradient
        # for one bad value.
        return None

    def _record(
        self, used: UsedGames, version: int, own: tuple[str, ...], partner_names: dict[str, str]
    ) -> None:
        drawn, groups, problems = used.drawn, used.groups, used.problems
        missing = self.plan.games - sum(len(group) for group in drawn)
        # Of the tasks as they came: a choice of those with spread would show another score.
        metrics = episode_metrics(
            drawn,
            self.setups,
            games_dropped=missing,
            groups_dropped=self.plan.tasks - len(drawn),
            own=own,
            partners=partner_names if self.settings.partners else None,
            reply_limit=self.settings.max_completion_length,
            end_id=self.processing_class.eos_token_id,
        )
        self._add(metrics)
        for problem in problems:
            self._incident("games_dropped", problem, step=version)
        if self.accelerator.is_main_process:
            try:
                self.link.copy_log()
                if version % self.settings.episodes_every == 0:
                    write_episodes(self.link.run_folder, version, groups)
            except OSError as error:
                # A full disk, or a server that refuses its log: a record that is lost stops no run.
                self._incident(
                    "records_failed",
                    f"{self.link.run_folder}: {error.strerror or error}",
                    step=version,
                )
        self._empty_steps = 0 if groups else self._empty_steps + 1
        if not groups:
            self._incident(
                "step_dropped",
                "no group of games could be used; nothing moves in this step",
                step=version,
            )
        if self._empty_steps >= BAD_STEPS_IN_A_ROW:
            raise NonFiniteError(
                f"{self._empty_steps} steps in a row had no usable game; the last reasons: "
                f"{'; '.join(problems[:3])}. "
                "Look at the server's log, and go on with RESUME=latest."
            )

    def _measure_load(self, batches: list[dict[str, Any]], playing: float, learning: float) -> None:
        sampled = self._metrics["train"]["reply_tokens"][-1]
        found = {"memory/peak_gib": peak_gib(self.accelerator.device)}
        found["tokens/sampled_per_second"] = sampled / max(playing, 1e-9)
        if self._tokens:
            # As `time/train`, of the step before.
            found["tokens/learned_per_second"] = self._tokens / learning
            # A forward pass and the gradient of its input (frozen weights have none), however they
            # are computed.
            operations = 4.0 * self.model.num_parameters() * self._tokens
            found |= utilisation(self.accelerator.device, operations, learning)
        self._add(found)
        self._tokens = sum(int(batch["grpo_batch"].seq_lengths.sum()) for batch in batches)

    def _add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self._metrics["train"][name].append(value)

    def _incident(self, kind: str, message: str, **details: object) -> None:
        if self.accelerator.is_main_process:
            self.link.incidents.record(kind, message, **details)
