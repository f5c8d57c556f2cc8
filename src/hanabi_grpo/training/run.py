"""One run as the loop sees it: every step of `loop.train`, composed of independent parts.

Each part is documented in its own module: `link` talks to rollout servers, `overlap` prefetches
the episodes of later steps, `resampling` replaces zero-variance groups, `validation` plays its own
tasks, `batching` builds micro-batches with the advantages of `estimators` and the labels of
`lessons`, `mismatch` compares sampler and trainer, `loss` is the objective, `updates` orders the
optimizer updates, `isolation` keeps each player's update independent of the others, `checkpoint`
saves, `record` computes the metrics.
"""

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list, gather_object

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ParityError, SettingsError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import training_rows
from hanabi_grpo.runs.manifest import (
    checkpoints_of,
    is_checkpoint_of,
    read_manifest,
    spec_hashes,
)
from hanabi_grpo.runs.restored_run import TRAINER_STATE
from hanabi_grpo.runs.validation import best_of
from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.settings.objective import run_estimator
from hanabi_grpo.settings.partners import own_seats, read_pool
from hanabi_grpo.settings.teachers import label_kinds, parse_teachers
from hanabi_grpo.training.adapter_probe import AdapterProbe
from hanabi_grpo.training.advantages import next_estimator_state
from hanabi_grpo.training.batching import (
    AdvantageOptions,
    CutPlan,
    build_micro_batches,
)
from hanabi_grpo.training.belief_labels import AskedTokens, belief_labels
from hanabi_grpo.training.check_sample import check_rows
from hanabi_grpo.training.checkpoint import (
    CheckpointSaver,
    OptimizerState,
    TrainingState,
    restore_random_state,
)
from hanabi_grpo.training.estimators import EstimatorContext, LearnedValues
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.isolation import PlayerGuard, PlayerSchedule, forget_gradients
from hanabi_grpo.training.kl import Costs, adapted_weights, measure_batches, measure_costs
from hanabi_grpo.training.late_games import (
    late_figures,
    late_tasks,
    read_late_tasks,
    remember_late_tasks,
)
from hanabi_grpo.training.learned.adapter_critic import AdapterCritics
from hanabi_grpo.training.learned.value_learner import ValueLearner, make_learners
from hanabi_grpo.training.lessons import (
    TaughtTokens,
    Teaching,
    lesson_figures,
    teaching_at,
    weight_figures,
)
from hanabi_grpo.training.loss import (
    LOSS_EXTREMES,
    LOSS_MEANS,
    PolicyLoss,
    add_entropy_bonus,
    mean_logprobs,
)
from hanabi_grpo.training.matchmaking import PartnerRecord
from hanabi_grpo.training.micro_batch import MicroBatch, collate
from hanabi_grpo.training.minibatches import parts_of_games
from hanabi_grpo.training.mismatch import CheckedGames, MismatchCheck
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.overlap import PlayAhead, StepGames
from hanabi_grpo.training.policy import EarlierVersions, Policy
from hanabi_grpo.training.record import GameRecorder, LoadMeter, StepMetrics
from hanabi_grpo.training.reference import Reference
from hanabi_grpo.training.resampling import UsedGames, resample
from hanabi_grpo.training.rewards import paid_groups
from hanabi_grpo.training.seats import NOBODY, SeatAssignment
from hanabi_grpo.training.shared_passes import Pass
from hanabi_grpo.training.state import StepState
from hanabi_grpo.training.tasks import TaskDataset
from hanabi_grpo.training.thoughts import TrainedTokens, WithoutThoughts, all_tokens, text_of
from hanabi_grpo.training.updates import (
    EVERYBODY,
    Update,
    batch_log_ratios,
    batch_weights,
    plan_updates,
    sum_log_ratios,
)
from hanabi_grpo.training.validation import Validation, Verdict
from hanabi_grpo.types import adapter_of, player_names

logger = logging.getLogger(__name__)

_SECONDS = "time/"
"""Prefix of the names of figures that are durations."""
_THINKS = 0.5
"""A player that writes a thought on more of its turns than this share thinks."""
_Shared = TypeVar("_Shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """A step's episodes, the same on every rank."""

    version: int
    """Version of the adapters that learn from the episodes, which is the number of finished
    steps."""
    games: StepGames
    """Episodes as the servers sent them; with HANABI_OVERLAP they are of an earlier version."""
    used: UsedGames
    """The episodes that metrics count, and those that are trained on."""
    seats: SeatAssignment
    """Which of the run's players played them, and which players learn."""
    partner_names: Mapping[str, str]
    """The name of each partner in metrics, by its seat reference."""


class Events(Protocol):
    """Events of the loop that other parts are notified of, see `trainer.TrainerEvents`."""

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the step that was just finished."""
        ...

    @property
    def should_save(self) -> bool:
        """Whether a checkpoint is due after the step that was just finished."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass with a gradient."""
        ...

    def begin_step(self) -> None:
        """Signal that a step begins."""
        ...

    def end_micro_batch(self) -> None:
        """Signal that a gradient was accumulated and no update follows yet."""
        ...

    def before_update(self) -> None:
        """Signal that an update follows."""
        ...

    def after_update(self) -> None:
        """Signal that an update was made."""
        ...

    def end_step(self, num_steps: int, *, is_last: bool) -> None:
        """Signal that `num_steps` steps are finished, and whether this was the last one."""
        ...

    def log(self, figures: Mapping[str, float]) -> None:
        """Pass a step's figures to all loggers."""
        ...

    def end_save(self, folder: Path) -> None:
        """Signal that a checkpoint was written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """The components of a run, once model and optimizer are prepared."""

    settings: Settings
    link: Link
    """Link to the rollout servers."""
    accelerator: Accelerator
    policy: Policy
    """The model with all adapters."""
    optimizer: Any
    """accelerate's optimizer, with one group per player."""
    schedule: PlayerSchedule
    guard: PlayerGuard
    """Runs as a hook before the optimizer's step."""
    validation: Validation
    setups: Mapping[str, Setup[Any]]
    """The environments that are played, by the hash of their rules."""
    events: Events
    report: Callable[..., None]
    """Called as report(kind, message, **details) for an incident."""
    pad_id: int
    end_id: int | None
    """The token that ends a reply."""
    token_text: Callable[[int], str]
    """(token id) -> its text, special tokens included."""
    max_steps: int
    first_step: int
    """Number of steps finished before this process started."""
    resume_folder: Path | None
    """The checkpoint that the run resumes from; None for a new run."""
    base_checksum: str
    """Checksum of the frozen weights, see `adapters.base_checksum`."""
    started_from: Mapping[str, Any]
    """Facts about HANABI_START_FROM, for the manifest of checkpoints."""
    tokenizers: Mapping[str, Any] = field(default_factory=dict)
    """The base model's tokenizer of each player whose base model is not player_0's."""
    tokenizer: Any = None
    """Tokenizer of player_0's base model; only the belief loss encodes text."""


class TrainingRun:
    """A run in progress, on one of its processes."""

    def __init__(self, parts: RunParts) -> None:
        """Take the parts that the trainer has prepared, and restore a resumed run."""
        settings = parts.settings
        accelerator = parts.accelerator
        self._parts = parts
        self._settings = settings
        self._accelerator = accelerator
        self._device = accelerator.device
        self._policy = parts.policy
        self._guard = parts.guard
        self._events = parts.events
        self._validation = parts.validation
        self._rows = training_rows(settings)
        self._plan = batch_plan(settings)
        # Only a resumed run has this file.
        late = read_late_tasks(parts.link.run_folder)
        if late:
            logger.info("replacing %d tasks whose games timed out earlier in this run", len(late))
        self._tasks = TaskDataset(self._rows, parts.max_steps * self._plan.tasks, late)
        self._loss = PolicyLoss(settings)
        self._boards_before: tuple[str, ...] = ()
        """Hashes of the boards that were played before this process started."""
        self._ahead = PlayAhead(parts.link, self._policy.adapter_names)
        self._metrics = StepMetrics()
        self._may_skip_thoughts = set(parse_teachers(settings))
        is_relative = self._policy.has_whole_weights
        if not is_relative:
            logger.warning(
                "under ZeRO-3 no process holds whole adapters, so the mismatch check cannot "
                "compare with other policies: a stale adapter is detected only if its gap exceeds "
                "HANABI_PARITY_TOLERANCE=%g, and wrong sampling settings are not detected",
                settings.parity_tolerance,
            )
        self._earlier = EarlierVersions(
            self._policy.model, behind=settings.overlap + int(is_relative)
        )
        self._mismatch = MismatchCheck(
            self._policy,
            self._earlier,
            accelerator,
            tolerance=settings.parity_tolerance,
            dtype=settings.dtype,
            is_relative=is_relative,
            report=parts.report,
        )
        self._probe = AdapterProbe(
            self._policy,
            parts.link,
            dtype=settings.dtype,
            pad_id=parts.pad_id,
            device=self._device,
        )
        self._recorder = GameRecorder(
            settings,
            self._plan,
            parts.setups,
            parts.link,
            end_id=parts.end_id,
            end_ids={name: one.eos_token_id for name, one in parts.tokenizers.items()},
            is_main_process=accelerator.is_main_process,
            report=parts.report,
        )
        self._load = LoadMeter(self._device, self._policy.num_parameters())
        self._pool = read_pool(settings)
        self._has_earlier_partners = any(partner.is_earlier for partner in self._pool)
        self._saver = CheckpointSaver(
            self._policy,
            parts.optimizer,
            accelerator,
            run_folder=parts.link.run_folder,
            base_checksum=parts.base_checksum,
            facts=self._checkpoint_facts,
            best_step=self._best_step,
            keep=settings.save_total_limit,
            # Which versions are partners must not depend on when the run was interrupted.
            every=settings.save_steps if self._has_earlier_partners else 1,
            report=parts.report,
        )
        self._cut = CutPlan(
            tokens_per_micro_batch=self._plan.tokens_per_micro_batch,
            micro_batches_per_player=self._plan.micro_batches_per_player,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            shares_prefixes=self._policy.shares_prefixes,
        )

        self._pass_limit: int | None = None
        """Largest total weight of the micro-batches in a shared pass; None: no shared passes."""
        # A micro-batch that is sized in trajectories keeps the size that was asked for.
        if self._policy.shares_passes and self._cut.tokens_per_micro_batch:
            self._pass_limit = self._cut.tokens_per_micro_batch

        self.state = StepState(step=parts.first_step)
        """State after the last finished step."""
        self._next_state = self.state
        """What `state` becomes when the step in progress is finished."""
        self._pushed_version: int | None = None
        self._verdict = self._validation.verdict(parts.first_step)
        self._step_started = time.perf_counter()
        self._step_losses: list[torch.Tensor] = []
        self._taught = TaughtTokens()
        tokenizers = dict.fromkeys(player_names(settings.players), parts.tokenizer)
        self._beliefs = belief_labels(settings, parts.setups, tokenizers | dict(parts.tokenizers))
        self._asked = AskedTokens()
        self._log_ratios: list[Mapping[Hashable, float]] = []
        """In a sequential step: for each earlier player, its log ratio per game or game step."""
        self._updates_of_player = settings.updates_per_step
        """Number of updates that each player makes in the step in progress."""
        self._estimator = run_estimator(settings)
        self._reference = Reference(parts.policy, settings.reference)
        self._thoughts: WithoutThoughts | None = None
        if not settings.train_thoughts:
            texts = {name: text_of(one) for name, one in parts.tokenizers.items()}
            self._thoughts = WithoutThoughts(parts.token_text, texts)
        self._value_learner = self._make_value_learner()
        if parts.resume_folder is not None:
            self._restore(parts.resume_folder)

    def _make_value_learner(self) -> ValueLearner | AdapterCritics | None:
        """Return the learner of values; None if the run's estimator needs no learned values."""
        if self._settings.critic == "adapter":
            return AdapterCritics(
                self._settings,
                {spec_hash: setup.spec for spec_hash, setup in self._parts.setups.items()},
                policy=self._policy,
                accelerator=self._accelerator,
                cut=self._cut,
                pad_id=self._parts.pad_id,
            )
        width = self._policy.width
        specs = {spec_hash: setup.spec for spec_hash, setup in self._parts.setups.items()}
        learners = make_learners(self._settings, self._policy.adapter_names, specs, width)
        if learners is None:
            return None
        return ValueLearner(
            learners,
            policy=self._policy,
            accelerator=self._accelerator,
            cut=self._cut,
            pad_id=self._parts.pad_id,
        )

    def _restore(self, folder: Path) -> None:
        """Continue from a checkpoint exactly as the run that wrote it would have continued."""
        with self._policy.whole_adapters(written=True):
            for name in self._policy.adapter_names:
                adapters.load_adapter(self._policy.model, name, folder / name)
        saved = TrainingState.load(folder / TRAINER_STATE, self._parts.first_step)
        parameters = self._policy.adapter_parameters
        optimizer = OptimizerState(parameters, self._parts.optimizer)
        with self._policy.whole_adapters(written=True):
            optimizer.restore(saved.moments, kind=saved.optimizer_kind)
        optimizer.restore_counts(saved.groups)
        optimizer.restore_loss_scale(saved.step_state.loss_scale)
        self._parts.schedule.refresh()
        self._boards_before = spec_hashes(read_manifest(folder).facts)
        self.state = saved.step_state
        self._next_state = self.state
        self._earlier.restore(self.state.step - 1, self.state.earlier)
        self._reference.restore(self.state.reference)
        if self._value_learner is not None:
            self._value_learner.restore(self.state.critics)
        rank = self._accelerator.process_index
        if rank < len(saved.random_states):
            restore_random_state(saved.random_states[rank])
        else:
            logger.warning(
                "process %d: the checkpoint has no random state for this process; it keeps the one "
                "it started with",
                rank,
            )
        if self._has_earlier_partners and self._accelerator.is_main_process:
            self._finish_rotation(folder)
        logger.info("resumed from %s: the next step is number %d", folder, self.state.step + 1)

    def _finish_rotation(self, checkpoint: Path) -> None:
        """Finish the rotation of a process that was killed right after it wrote this checkpoint."""
        run_folder = self._parts.link.run_folder
        is_own = is_checkpoint_of(checkpoint, run_folder)
        if is_own and max(checkpoints_of(run_folder)) == self.state.step:
            # The checkpoint's own version was validated after it was saved.
            earlier = [row for row in self._validation.rows if row.step < self.state.step]
            best = best_of(earlier)
            self._saver.rotate(best.step if best is not None else None)

    # Playing

    def remaining_steps(self) -> Iterator[int]:
        """Yield the 0-based number of each step that is left, e.g. 0, 1, 2 for MAX_STEPS=3."""
        self._policy.trained_module.train()
        if self._validation.ended_at(self.state.step):
            return
        for step in range(self.state.step, self._parts.max_steps):
            self._step_started = time.perf_counter()
            self._events.begin_step()
            # Before any part of the step gives the adapters other weights for a while.
            self._earlier.keep(step)
            yield step
            if self._events.should_stop:
                return

    def probe_adapters(self) -> None:
        """Stop the run if a server's model ignores adapters, see `adapter_probe`.

        The probe takes a fraction of a second. It runs in the first step of a process and in the
        first step after a server was replaced; in all other steps nothing is sent.

        Raises:
            ParityError: On every rank, if a server's model ignores adapters.
        """
        problem = ""
        if self._accelerator.is_main_process:
            problem = self._probe.find_problem()
        problem = _broadcast(problem)
        if problem:
            raise ParityError(problem)

    def push_adapters(self) -> int:
        """Push the current weights; returns their version, which is the number of finished steps.

        When this returns, every server has acknowledged every adapter with its digest.
        """
        version = self.state.step
        if self._pushed_version == version:
            return version
        with self._metrics.timed("time/push"), self._policy.whole_adapters():
            if self._accelerator.is_main_process:
                self._parts.link.push(self._policy.model, self._policy.adapter_names, version)
        self._pushed_version = version
        return version

    def validate(self, version: int) -> None:
        """Evaluate the pushed version, if an evaluation is due.

        The verdict (which players learn, whether the run ends) applies to this step on every rank.
        """
        outcome: tuple[dict[str, float], Verdict] | None = None
        if self._accelerator.is_main_process:
            figures = self._measure(version)
            outcome = figures, self._validation.verdict(version)
        figures, self._verdict = _broadcast(outcome)
        self._metrics.add(figures)
        if not self._verdict.is_phase_best:
            return
        [player] = self._verdict.active_players
        if player == self._verdict.finished_player and self.state.phase_best:
            # The only trained player: its next phase begins with the weights it returns to.
            return
        self._next_state = replace(self._next_state, phase_best=self._weights_of(player))

    def return_to_phase_best(self) -> bool:
        """Restore the best version of the player whose phase is over, see `phases`.

        Call it after `validate`.

        Returns:
            Whether a phase is over. If so, this is the whole step: its games would be played beside
            the version that the player has given up.
        """
        player = self._verdict.finished_player
        if player is None:
            return False
        restored = self.state.phase_best
        if not restored:
            logger.warning("%s keeps its last version: its best version was not saved", player)
        parameters = self._policy.adapter_parameters
        with self._policy.whole_adapters(written=True):
            adapters.fill(parameters, restored)
        with self._policy.whole_adapters():
            OptimizerState(parameters, self._parts.optimizer).adopt_weights(restored)
        if self._settings.beta:
            # HANABI_REFERENCE=every:K may be due.
            self._reference.begin_step(self.state.step)
            self._next_state = replace(self._next_state, reference=self._reference.weights)
        # They were requested with earlier versions of the player.
        self._ahead.discard()
        self._guard.begin_step()
        self._step_losses = []
        self._metrics.add({"games": 0.0})
        return True

    def _measure(self, version: int) -> dict[str, float]:
        """Return the figures of exploitability, beliefs and validation that are due.

        Only the main process calls it.
        """
        link = self._parts.link
        names = self._policy.adapter_names
        figures: dict[str, float] = {}
        exploit_every = self._settings.exploit_every
        if exploit_every and version % exploit_every == 0:
            figures |= link.exploited(names, version)
        beliefs_every = self._settings.beliefs_every
        if beliefs_every and version % beliefs_every == 0:
            figures |= self._believed(version)
        if self._validation.is_due(version):
            results = link.validated(self._validation.curves, names, version)
            groups = {name: result.groups for name, result in results.items()}
            own = own_seats(self._settings.players, names, version)
            figures |= self._validation.add(version, groups, own)
        return figures

    def _believed(self, version: int) -> dict[str, float]:
        """Return the figures of beliefs; none if players have begun to think in training."""
        try:
            return self._parts.link.believed(self._policy.adapter_names, version)
        except SettingsError as error:
            # At the start it is a setting that cannot work; later it must not end the training.
            if version == 0:
                raise
            self._parts.report("beliefs", f"no beliefs at version {version}: {error}")
            return {}

    def play(self, step: int, version: int) -> PlayedStep:
        """Return the step's episodes: NUM_GENERATIONS for each of its tasks.

        Args:
            step: Number of steps before this one.
            version: Version of the adapters that were pushed for the step.
        """
        played: PlayedStep | None = None
        if self._accelerator.is_main_process:
            tasks = self._tasks.of_step(step, self._plan.tasks)
            link = self._parts.link
            link.use_partner_record(self._partners_seen_at(step))
            games = self._ahead.take(tasks, version)
            self._ask_ahead(step, version)
            self._remember_late_tasks(tasks, games)
            seats = SeatAssignment.at_version(
                self._settings,
                self._policy.adapter_names,
                games.version,
                self._verdict.active_players,
            )
            link.use_partner_record(self._partners_seen_at(step))
            used = resample(
                link,
                self._policy.adapter_names,
                tasks,
                games.result,
                version=version,
                trained=seats.trained,
            )
            played = PlayedStep(
                version=version,
                games=games,
                used=used,
                seats=seats,
                partner_names=link.partner_names,
            )
        played = _broadcast(played)
        self._metrics.add(played.used.metrics)
        # Over all finished games, including those of groups that lost too many games to be used.
        result = played.games.result
        self._metrics.add(late_figures(result.groups, result.dropped))
        self._metrics.add(
            self._recorder.record(played.used, version, played.seats.seats, played.partner_names)
        )
        if self._pool:
            self._remember_partners(step, played)
        if self._settings.overlap:
            self._metrics.add(
                {
                    "time/wait": played.games.wait_seconds,
                    "staleness": float(version - played.games.version),
                }
            )
        return played

    def _ask_ahead(self, step: int, version: int) -> None:
        """Request the games of the next HANABI_OVERLAP steps that are not requested yet."""
        first = step + 1 + self._ahead.num_asked
        last = min(step + self._settings.overlap, self._parts.max_steps - 1)
        for later_step in range(first, last + 1):
            self._parts.link.use_partner_record(self._partners_seen_at(later_step))
            tasks = self._tasks.of_step(later_step, self._plan.tasks)
            if not self._ahead.ask(tasks, version):
                return

    def _partners_seen_at(self, step: int) -> PartnerRecord:
        """Return the record that a step's partner draws may use, the same in a resumed run."""
        return self.state.partners.before(step - self._settings.overlap)

    def _remember_partners(self, step: int, played: PlayedStep) -> None:
        """Add a step's games with partners to the record, for later draws and for checkpoints."""
        settings = self._settings
        if settings.partner_draw == "worst":
            seen = self._partners_seen_at(step)
            power = settings.partner_power
            self._metrics.add(seen.figures(self._pool, settings.players, power))
        partners = self.state.partners.with_games(
            played.used.drawn,
            self._parts.setups,
            step=step,
            own_seats=played.seats.seats,
            names=played.partner_names,
            specs={partner.name: partner.spec for partner in self._pool},
            further=played.used.further,
        )
        self._next_state = replace(self._next_state, partners=partners)

    def _remember_late_tasks(self, tasks: Sequence[TaskRow], games: StepGames) -> None:
        numbers = late_tasks(tasks, games.result.groups, games.result.dropped)
        if not numbers:
            return
        try:
            remember_late_tasks(self._parts.link.run_folder, numbers)
        except OSError as error:
            # E.g. a full disk. The only cost is that a resumed run would draw the tasks again.
            logger.warning("tasks whose games timed out could not be recorded: %s", error)

    # Learning

    def build_batches(self, played: PlayedStep) -> list[MicroBatch]:
        """Return this rank's micro-batches of the step, ready for the loss."""
        seats = played.seats
        groups = paid_groups(
            played.used.groups,
            self._settings,
            seats.seats,
            self._kl_costs(played),
            self._trained(played),
        )
        values = LearnedValues()
        if self._value_learner is not None:
            with self._metrics.timed("time/critic"):
                observation = self._value_learner.observe(groups, seats.seats, seats.players)
            self._metrics.add(observation.metrics)
            values = observation.values
            critics = self._value_learner.state()
            self._next_state = replace(self._next_state, critics=critics)
        taught = teaching_at(self._settings, self.state.step)
        if taught:
            self._metrics.add(weight_figures(taught))
            trained = self._trained(played)
            figures = lesson_figures(played.used.drawn, seats.seats, seats.players, trained)
            self._metrics.add(figures)
            self._warn_of_skipped_thoughts(figures, taught)
        batches = build_micro_batches(
            groups,
            trained_seats=seats.trained,
            players=seats.players,
            estimator=self._estimator,
            context=EstimatorContext(state=self.state.baselines, values=values),
            cut=self._cut,
            pad_id=self._parts.pad_id,
            device=self._device,
            unit=self._settings.loss_unit,
            options=AdvantageOptions(
                whiten=self._settings.whiten_advantages,
                clip=self._settings.advantage_clip,
                of_tokens=self._settings.gae_unit == "token",
            ),
            trained=self._trained(played),
            parts=parts_of_games(
                groups,
                self._settings.minibatches,
                seed=self._settings.seed,
                step=self.state.step,
            ),
            with_steps=self._settings.sequential_factor == "step",
            taught=taught,
            beliefs=self._beliefs,
            setups=[task.setup for task in played.used.tasks] if self._beliefs else (),
        )
        # For all own players: the baseline of a player that rests in this step still moves. From
        # the paid rewards, because the next step's games are compared with those.
        baselines = next_estimator_state(self._estimator, self.state.baselines, groups, seats.seats)
        self._next_state = replace(self._next_state, baselines=baselines)
        self._add_entropy_bonus(batches, played)
        if self._settings.beta and self._settings.kl_in == "loss":
            self._add_kl_term(batches)
        return batches

    def _trained(self, played: PlayedStep) -> TrainedTokens:
        """Return the function that tells which tokens of a step's replies carry loss."""
        if self._thoughts is None:
            return all_tokens
        return self._thoughts.in_seats(played.seats.players)

    def _kl_costs(self, played: PlayedStep) -> Costs:
        """Return the cost of each reply in points; empty unless HANABI_KL_IN=reward."""
        settings = self._settings
        if not settings.beta:
            return {}
        self._reference.begin_step(self.state.step)
        if settings.kl_in != "reward":
            return {}
        seats = played.seats
        with self._metrics.timed("time/reference"):
            measured = measure_costs(
                played.used.groups,
                trained_seats=seats.trained,
                players=seats.players,
                reference=self._reference,
                trained=self._trained(played),
                cut=self._cut,
                pad_id=self._parts.pad_id,
                device=self._device,
            )
        if measured.mean is not None:
            # With the KL term in the loss, `PolicyLoss` measures it.
            self._metrics.add({"kl": measured.mean})
        weights = self._kl_weights()
        self._adapt_kl_weights(weights, measured.by_player)
        costs: dict[int, dict[int, list[float]]] = {}
        for seat, by_game in measured.costs.items():
            weight = weights[seats.players[seat]]
            costs[seat] = {}
            for game, nats in by_game.items():
                costs[seat][game] = [weight * value for value in nats]
        return costs

    def _add_kl_term(self, batches: Sequence[MicroBatch]) -> None:
        weights = self._kl_weights()
        with self._metrics.timed("time/reference"), self._reference.in_use():
            for batch in batches:
                batch.reference_logprobs = self._reference.logprobs(batch)
                batch.kl_weight = weights[batch.player]
        self._adapt_kl_weights(weights, measure_batches(batches))

    def _kl_weights(self) -> dict[str, float]:
        """Return the weight of each player's KL term in this step."""
        weights = dict.fromkeys(player_names(self._settings.players), self._settings.beta)
        if self._settings.kl_target is None:
            return weights
        return weights | dict(self.state.kl_weights)

    def _adapt_kl_weights(self, weights: Mapping[str, float], kl_of: Mapping[str, float]) -> None:
        """Record the KL of the step, and set the weights of the next step."""
        for player, kl in kl_of.items():
            self._metrics.add({f"{player}/kl": kl, f"{player}/kl_weight": weights[player]})
        target = self._settings.kl_target
        # A constant weight is BETA, which a fork may change.
        adapted = {} if target is None else adapted_weights(weights, kl_of, target)
        self._next_state = replace(
            self._next_state, kl_weights=adapted, reference=self._reference.weights
        )

    def _add_entropy_bonus(self, batches: Sequence[MicroBatch], played: PlayedStep) -> None:
        bonus = self._settings.entropy_bonus
        if not bonus:
            return
        seats = played.seats
        means = mean_logprobs(
            played.used.drawn, seats.trained, seats.players, trained=self._trained(played)
        )
        add_entropy_bonus(batches, bonus, means, self._entropy_targets())

    def _entropy_targets(self) -> dict[str, float] | None:
        """Return each player's HANABI_ENTROPY_TARGET in this step; None if it is not set.

        Exploration ends with learning: a player's target falls with its own learning rate. The rate
        of a player that is at rest, or has no data in a step, does not fall in that step.
        """
        target = self._settings.entropy_target
        if target is None:
            return None
        rates = self._learning_rates()
        targets = {}
        for player in player_names(self._settings.players):
            adapter = adapter_of(player, self._policy.adapter_names)
            targets[player] = target * rates[adapter] / self._settings.rate_of(adapter)
        return targets

    def check_logprobs(self, batches: Sequence[MicroBatch], played: PlayedStep) -> None:
        """Stop the run if another policy than the trained one sampled the games.

        The absolute check of games by the current version is part of the first forward pass
        (`logprobs`). Two kinds of games are checked here instead: those of an earlier version, and
        those of a step that is divided into parts (HANABI_MINIBATCHES), because the policy has
        moved by the time the later parts are trained on.

        Raises:
            ParityError: Another policy sampled them; nothing was updated in the step.
        """
        sampled_by = played.games.version
        with self._metrics.timed("time/mismatch"):
            evidence, figures = self._mismatch.check_games(
                self._checked_games(played), before=self.state.mismatch
            )
        self._metrics.add(figures)
        self._next_state = replace(self._next_state, mismatch=evidence)
        if sampled_by != played.version:
            with self._metrics.timed("time/recall"):
                # The policy that sampled is π_old, and the one that is compared with the sampler.
                with self._earlier.using(sampled_by):
                    self._fix_old_logprobs(batches, sampled_by)
                if self._settings.decoupled_loss:
                    # The comparison above still holds; π_old becomes the current policy.
                    for batch in batches:
                        batch.old_logprobs = self._policy.fixed_logprobs(batch)
        elif any(batch.part for batch in batches):
            with self._metrics.timed("time/recall"):
                self._fix_old_logprobs(batches, sampled_by)
        self._metrics.add(
            self._load.measure(batches, played.games, played.used, self._step_started)
        )

    def _fix_old_logprobs(self, batches: Sequence[MicroBatch], sampled_by: int) -> None:
        """Compute π_old of all micro-batches with the weights in use, and check it."""
        for batch in batches:
            batch.old_logprobs = self._policy.fixed_logprobs(batch)
            self._check_gap(batch, batch.old_logprobs, sampled_by)

    def _checked_games(self, played: PlayedStep) -> CheckedGames:
        """Return the games for the mismatch check: as drawn, before any are selected."""
        drawn = played.used.drawn
        episodes = flatten_groups(drawn)
        samples = {}
        if self._mismatch.is_relative:
            for seat, player in enumerate(played.seats.players):
                if played.seats.trained[seat] == NOBODY:
                    continue
                rows = check_rows(
                    episodes,
                    seat,
                    played.seats.trained,
                    first=played.version,
                    rank=self._accelerator.process_index,
                    world_size=self._accelerator.num_processes,
                )
                num_replies = sum(sum(row.mask) for row in rows)
                samples[player] = collate(
                    rows,
                    player,
                    num_replies,
                    self._parts.pad_id,
                    self._device,
                    self._policy.shares_prefixes,
                )
        return CheckedGames(
            samples=samples,
            groups=drawn,
            num_dropped=max(0, self._plan.games - len(episodes)),
            version=played.version,
            sampled_by=played.games.version,
        )

    def _warn_of_skipped_thoughts(
        self, figures: Mapping[str, float], taught: Mapping[str, Teaching]
    ) -> None:
        """Warn once for each player that thinks and is taught replies without a thought."""
        for player in sorted(self._may_skip_thoughts):
            share = figures.get(f"{player}/teacher_skips_thought", 0.0)
            if share <= _THINKS or not taught[player].teacher:
                continue
            self._may_skip_thoughts.remove(player)
            logger.warning(
                "%s wrote a thought on %.0f %% of its labeled turns, and the replies of its "
                "teacher %s have none: it will learn to skip its thoughts; use a teacher that "
                "thinks aloud in the same words, such as save-bot-aloud in Hanabi, or a model",
                player,
                100 * share,
                parse_teachers(self._settings)[player],
            )

    def _check_gap(self, batch: MicroBatch, logprobs: torch.Tensor, version: int) -> None:
        gaps = self._mismatch.check_gap(batch, logprobs, version)
        if gaps.num_tokens:
            self._metrics.add_mean(f"{batch.player}/parity", gaps.total, gaps.num_tokens)

    def plan_updates(self, batches: Sequence[MicroBatch]) -> Iterator[Update]:
        """Yield the step's optimizer updates, each after the previous one was made."""
        moving = {
            adapter_of(batch.player, self._policy.adapter_names)
            for batch in batches
            if batch.has_data
        }
        if not moving:
            logger.warning(
                "step %d: no update, because no trained player had a turn to learn from in any "
                "game; does a partner end every game on its first move, or does a teacher without "
                "a weight play all turns?",
                self.state.step + 1,
            )
        updates = plan_updates(
            batches,
            self._settings,
            step=self.state.step,
            adapter_names=self._policy.adapter_names,
            active=moving,
            pass_limit=self._pass_limit,
        )
        self._guard.begin_step()
        self._log_ratios = []
        self._step_losses = []
        num_parts = len({batch.part for batch in batches})
        self._updates_of_player = self._settings.updates_per_step * num_parts
        for number, update in enumerate(updates):
            self._guard.begin_update(update.adapters)
            yield update
            if update.last_of_player != EVERYBODY and number + 1 < len(updates):
                following = updates[number + 1].player
                self._weigh_games(
                    [batch for batch in batches if batch.player == update.player],
                    [batch for batch in batches if batch.player == following],
                    has_moved=any(one.adapters for one in updates if one.player == update.player),
                )

    def logprobs(self, batches: Pass, update: Update) -> list[torch.Tensor]:
        """Return [rows, tokens] logprobs of each micro-batch of a pass, with a gradient.

        Each micro-batch is computed with the adapter of its own player.

        Raises:
            ParityError: In the first pass, if the logprobs differ from the sampler's.
        """
        with self._events.autocast():
            if len(batches) > 1:
                logprobs = self._policy.shared_logprobs(batches)
            else:
                logprobs = [self._policy.logprobs(batch) for batch in batches]
        if update.is_first_pass:
            for batch, of_batch in zip(batches, logprobs, strict=True):
                self._record_first_pass(batch, of_batch)
        return logprobs

    def _record_first_pass(self, batch: MicroBatch, logprobs: torch.Tensor) -> None:
        """Check and count a micro-batch's logprobs before its player learns from it."""
        if batch.old_logprobs is None:
            # Later passes, and the players after this one, compare with these.
            batch.old_logprobs = logprobs.detach()
            self._check_gap(batch, logprobs, self.state.step)
        self._taught.add(batch, logprobs)
        self._asked.add(batch, logprobs)

    def loss(self, logprobs: Sequence[torch.Tensor], batches: Pass) -> torch.Tensor:
        """Return the sum of the micro-batches' losses.

        Each loss is that of `loss.PolicyLoss`. No player's logprobs depend on another player's
        adapter, so the gradient of the sum is each player's own gradient.
        """
        losses = []
        for of_batch, batch in zip(logprobs, batches, strict=True):
            losses.append(self._loss_of(of_batch, batch))
        self._step_losses += [loss.detach() for loss in losses]
        return sum(losses[1:], start=losses[0])

    def _loss_of(self, logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        loss, measured = self._loss(logprobs, batch, self._accelerator.num_processes)
        num_tokens = batch.trained_mask.sum()
        numbers = torch.stack([*measured.values(), num_tokens]).detach().double()
        # One transfer: every single number that is read from a GPU synchronizes with it.
        everywhere = self._accelerator.gather(numbers[None]).cpu()
        # A process that has no token of the player has measured nothing.
        *of_processes, counts = everywhere[everywhere[:, -1] > 0].unbind(1)
        if not len(counts):
            return loss
        for name, means in zip(measured, of_processes, strict=True):
            total = float((means * counts).sum())
            self._metrics.add_mean(LOSS_MEANS[name], total, float(counts.sum()))
            if name in LOSS_EXTREMES:
                metric, extreme = LOSS_EXTREMES[name]
                self._metrics.add({metric: float(extreme(means))})
        return loss

    def backward(self, loss: torch.Tensor, batches: Pass, update: Update) -> None:
        """Accumulate the gradient of a loss; DeepSpeed makes the update after the last pass."""
        is_last = batches is update.passes[-1]
        self._accelerator.sync_gradients = is_last
        options: dict[str, Any] = {}
        if self._accelerator.distributed_type == DistributedType.DEEPSPEED:
            # The loss is already this micro-batch's share of the step's: do not average it again.
            options["scale_wrt_gas"] = False
        self._accelerator.backward(loss, **options)
        if not is_last:
            self._events.end_micro_batch()

    def optimizer_step(self, update: Update) -> None:
        """Update the adapters, each clipped by its own gradient norm (`isolation`).

        Raises:
            NonFiniteError: A player's gradient was not finite in too many steps in a row.
        """
        self._events.before_update()
        # Has no effect under DeepSpeed, whose engine has already made the update.
        self._parts.optimizer.step()
        self._events.after_update()
        self._policy.trained_module.zero_grad()
        forget_gradients(self._parts.optimizer)
        for name, norm in self._guard.end_update().items():
            self._metrics.add({f"{name}/grad_norm": norm})

    def _weigh_games(
        self, done: Sequence[MicroBatch], following: Sequence[MicroBatch], *, has_moved: bool
    ) -> None:
        """Weigh the next player's games by how much the last player has changed, see `updates`.

        Args:
            done: All micro-batches of the last player.
            following: All micro-batches of the next player.
            has_moved: Whether the last player's updates changed an adapter.
        """
        parts: list[Mapping[Hashable, float]] = []
        if has_moved:
            for batch in done:
                parts.append(batch_log_ratios(batch, self._policy.fixed_logprobs(batch)))
        # All ranks hold the same players' rows, but of different games.
        self._log_ratios.append(sum_log_ratios(gather_object(parts)))
        sums: list[tuple[str, float, int]] = []
        for batch in following:
            weights = batch_weights(self._log_ratios, batch, self._settings.sequential_limit)
            batch.game_weights = weights.to(self._device)
            # Padding belongs to no game, and the tokens of teachers and answers are not weighed.
            has_reply = batch.reply_mask.cpu()
            counted = weights[has_reply.any(1) if batch.steps is None else has_reply]
            sums.append((batch.player, float(counted.sum()), counted.numel()))
        for player, total, count in gather_object(sums):
            if count:
                self._metrics.add_mean(f"{player}/game_weight", total, count)

    # After a step

    def finish_step(self) -> None:
        """Count the step, advance the schedule, and log the figures."""
        norms = self._guard.norms.values()
        self._metrics.add(self._taught.take(gather_object))
        self._metrics.add(self._asked.take(gather_object))
        self._metrics.add(
            {
                "grad_norm": sum(norm**2 for norm in norms) ** 0.5,
                "updates_dropped": float(len(self._guard.dropped)),
                "step_time": time.perf_counter() - self._step_started,
            }
        )
        rate_of = self._learning_rates()
        # The rate of a player that learns: a player at rest keeps its place in the schedule.
        first_adapter = adapter_of(self._verdict.active_players[0], self._policy.adapter_names)
        rates = {"learning_rate": rate_of[first_adapter]}
        if isinstance(self._settings.learning_rate, str):
            for name, rate in rate_of.items():
                rates[f"{name}/learning_rate"] = rate
        # By each player's own count of updates, which the guard increments.
        self._parts.schedule.refresh()
        optimizer = OptimizerState(self._policy.adapter_parameters, self._parts.optimizer)
        self.state = replace(
            self._next_state,
            step=self.state.step + 1,
            earlier=self._earlier.weights(self.state.step),
            loss_scale=optimizer.loss_scale(),
        )
        self._next_state = self.state
        self._guard.end_step()
        is_last = self._verdict.ends_run or self.state.step == self._parts.max_steps
        self._events.end_step(self.state.step, is_last=is_last)
        figures = self._mean_loss() | self._metrics.take() | rates
        self._events.log(figures)

    def should_save(self) -> bool:
        """Tell whether a checkpoint is due: by SAVE_STEPS, at the end, or after a failed save."""
        return self._events.should_save or self._saver.should_retry()

    def save(self) -> None:
        """Write the checkpoint of the last finished step.

        Raises:
            RunFolderError: Too many saves in a row failed, for too long.
        """
        # A resumed run reads it along with the checkpoint.
        self._validation.write()
        self._saver.save(self.state, is_last=self._events.should_stop)
        if not self._saver.num_failed:
            self._events.end_save(self._saver.folder(self.state.step))

    def end(self) -> None:
        """Log the figures of the final adapters: no step follows whose row could hold them."""
        figures = self._metrics.take()
        measured = [
            f"{name} {value:.4g}"
            for name, value in figures.items()
            if not name.startswith(_SECONDS)
        ]
        if measured and self._accelerator.is_main_process:
            logger.info("final version %d: %s", self.state.step, ", ".join(measured))

    def save_interrupted(self) -> str:
        """Save the last finished step of a run that is being stopped; returns what was saved."""
        step = self.state.step
        folder = self._saver.folder(step)
        if step == self._parts.first_step:
            return "no step was finished, so there is nothing to save"
        if self._guard.is_stepping:
            return (
                "an optimizer update was interrupted, so nothing is saved; the newest checkpoint "
                "in the run folder is the one to resume from"
            )
        if self._accelerator.num_processes > 1:
            return (
                "nothing is saved, because several processes were interrupted; the newest "
                "checkpoint in the run folder is the one to resume from"
            )
        self._validation.write()
        if not folder.exists():
            # The interrupt may have left other weights in the model, see `adapters.holding`.
            self._policy.restore_base_weights()
            own_weights = self._earlier.weights(step)
            adapters.fill(self._policy.adapter_parameters, own_weights)
            self._saver.save(self.state)
        if self._saver.num_failed:
            return f"step {step} could not be saved; the earlier checkpoints are complete"
        return f"step {step} is saved in {folder}"

    # Parts of the above

    def _learning_rates(self) -> dict[str, float]:
        """Return the learning rate of each adapter in this step, at its own count of updates."""
        last_rates = self._parts.schedule.get_last_lr()
        rates = {}
        for name, rate in zip(self._policy.adapter_names, last_rates, strict=True):
            rates[name] = float(rate)
        return rates

    def _mean_loss(self) -> dict[str, float]:
        """Return the step's loss, a mean over updates and processes.

        With several players it is the sum of their losses. Empty: it is not finite, or the step had
        no games.
        """
        if not self._step_losses:
            return {}
        total = torch.stack(self._step_losses).sum() / self._updates_of_player
        mean = float(self._accelerator.gather(total[None].float()).mean())
        return {"loss": mean} if math.isfinite(mean) else {}

    def _weights_of(self, player: str) -> dict[str, torch.Tensor]:
        """Return a copy of a player's adapter; all ranks must call it together."""
        adapter = adapter_of(player, self._policy.adapter_names)
        parameters = adapters.trainable_parameters(self._policy.model, adapter)
        with self._policy.whole_adapters():
            return adapters.copy_parameters(parameters)

    def _checkpoint_facts(self) -> dict[str, object]:
        """Return the facts that a checkpoint's manifest records besides its files."""
        link = self._parts.link
        facts: dict[str, object] = {
            "spec_hashes": sorted({*self._boards_before, *link.spec_hashes}),
            "model": self._settings.model,
        }
        tools = {tool.name for setup in self._parts.setups.values() for tool in setup.tools}
        if tools:
            facts["tools"] = sorted(tools)
        if self._parts.started_from:
            facts["started_from"] = self._parts.started_from
        if self.state.partners.games:
            facts["trained_with"] = dict(self.state.partners.games)
        taught_by = {}
        kinds = label_kinds(self._settings)
        for player, teacher in parse_teachers(self._settings).items():
            taught_by[player] = {"teacher": str(teacher), "labels": kinds[player]}
        if taught_by:
            facts["taught_by"] = taught_by
        return facts | link.server_facts

    def _best_step(self) -> int | None:
        best = self._validation.best
        return best.step if best is not None else None


def _broadcast(value: _Shared | None) -> _Shared:
    """Return the main process's value on every process."""
    values = [value]
    broadcast_object_list(values, from_process=0)
    [shared] = values
    if shared is None:
        raise RuntimeError("the main process sent nothing.")
    return shared
