"""What one optimizer step consists of: tasks, games and micro-batches, and the trained players."""

import json
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.settings.base_models import base_models
from hanabi_grpo.settings.model import DEEPSPEED_STAGES, Settings
from hanabi_grpo.settings.objective import check_objective, run_estimator
from hanabi_grpo.settings.partners import check_partners_are_given, replaced_player
from hanabi_grpo.settings.per_player import check_per_player
from hanabi_grpo.settings.teachers import VARIABLES_OF_TEACHERS, check_teacher, parse_teachers
from hanabi_grpo.training.estimators import ESTIMATORS, GROUP_ESTIMATORS
from hanabi_grpo.types import SHARED_ADAPTER, player_names

ZERO_3 = 3
"""DeepSpeed's stage that also shards the weights of the base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The sizes of one step."""

    tasks: int
    """Tasks to play."""
    games: int
    """tasks × games per task."""
    sequences: int
    """games × players: one trajectory each."""
    micro_batches_per_player: int
    """Micro-batches of each trainer process, as Hugging Face's loop counts them.

    If sized by tokens, it is one, which is split further.
    """
    gradient_accumulation_steps: int
    """HANABI_UPDATES_PER_STEP × players × micro_batches_per_player.

    A micro-batch contains a single player.
    """
    per_device_train_batch_size: int
    """Trajectories of one micro-batch.

    If sized by tokens, the most that a player's micro-batch can have, in whole groups.
    """
    tokens_per_micro_batch: int = 0
    """Padding included; 0: micro-batches are sized by trajectories."""


def batch_plan(settings: Settings) -> BatchPlan:
    """Return the sizes of one step.

    Raises:
        SettingsError: The games do not divide evenly, or settings contradict each other.
    """
    check_updates(settings)
    _check_decoupled_loss(settings)
    if settings.overlap and deepspeed_stage(settings) == ZERO_3:
        raise SettingsError(
            f"HANABI_OVERLAP={settings.overlap} with DEEPSPEED={settings.deepspeed}: under ZeRO-3 "
            "no process holds whole adapters, so the version that sampled cannot be kept; use "
            "zero2, or unset HANABI_OVERLAP."
        )
    if settings.reference != "base" and deepspeed_stage(settings) == ZERO_3:
        raise SettingsError(
            f"HANABI_REFERENCE={settings.reference} with DEEPSPEED={settings.deepspeed}: under "
            "ZeRO-3 no process holds whole adapters, so earlier ones cannot be kept; use zero2, "
            "or HANABI_REFERENCE=base."
        )
    if settings.critic == "adapter" and deepspeed_stage(settings) == ZERO_3:
        raise SettingsError(
            f"HANABI_CRITIC=adapter with DEEPSPEED={settings.deepspeed}: under ZeRO-3 no process "
            "holds the whole weights that the critic's adapter needs; use zero2, or "
            "HANABI_CRITIC=head."
        )
    has_critic = ESTIMATORS[settings.advantage].needs.is_critic
    if has_critic and settings.critic == "adapter" and settings.dtype == "float16":
        raise SettingsError(
            "HANABI_CRITIC=adapter with HANABI_DTYPE=float16: the gradients of the critic's "
            "adapter are too small for this format; use bfloat16, float32, or HANABI_CRITIC=head."
        )
    if settings.critic == "adapter" and len(base_models(settings)) > 1:
        raise SettingsError(
            f"HANABI_CRITIC=adapter with MODEL={settings.model}: a critic's adapter belongs to one "
            "base model, but would read the conversations of players with several; use "
            "HANABI_CRITIC=head, or one MODEL."
        )
    if len(base_models(settings)) > 1 and deepspeed_stage(settings) == ZERO_3:
        raise SettingsError(
            f"MODEL={settings.model} with DEEPSPEED={settings.deepspeed}: ZeRO-3 shards the "
            "weights of a single model; use zero2, or one MODEL."
        )
    tasks = settings.tasks_per_step
    group = settings.num_generations
    games = tasks * group
    processes = settings.nproc_per_node
    if processes > 1 and settings.deepspeed == "none":
        raise SettingsError(
            f"NPROC_PER_NODE={processes} DEEPSPEED=none: several processes need DEEPSPEED=zero1, "
            "zero2 or zero3, because a micro-batch leaves the other players' adapters without "
            "gradients."
        )
    tokens = tokens_per_micro_batch(settings)
    if tokens:
        # What ms-swift multiplies must be whole groups; `cut_by_tokens` decides how many
        # trajectories each rank gets.
        tasks_per_process = -(-tasks // processes)
        batch = tasks_per_process * group
        micro_batches = 1
    else:
        batch = settings.per_device_train_batch_size
        micro_batches, rest = divmod(games, processes * batch)
        if rest:
            raise SettingsError(
                f"{tasks} tasks × {group} games = {games} games are not divisible by "
                f"NPROC_PER_NODE={processes} × PER_DEVICE_TRAIN_BATCH_SIZE={batch} = "
                f"{processes * batch}: change HANABI_TASKS_PER_STEP or NUM_GENERATIONS, lower the "
                "batch size, or unset it: micro-batches sized by tokens always fit."
            )
    return BatchPlan(
        tasks=tasks,
        games=games,
        sequences=games * settings.players,
        micro_batches_per_player=micro_batches,
        gradient_accumulation_steps=settings.updates_per_step * settings.players * micro_batches,
        per_device_train_batch_size=batch,
        tokens_per_micro_batch=tokens,
    )


def tokens_per_micro_batch(settings: Settings) -> int:
    """Return the maximum tokens of a micro-batch, see `training.batching`; 0: count trajectories.

    Trajectories are counted if PER_DEVICE_TRAIN_BATCH_SIZE is given alone.
    """
    given = settings.model_fields_set
    if "per_device_train_batch_size" in given and "tokens_per_micro_batch" not in given:
        return 0
    return settings.tokens_per_micro_batch


def deepspeed_stage(settings: Settings) -> int:
    """Return the ZeRO stage of DEEPSPEED, 0 without DeepSpeed.

    Raises:
        SettingsError: It names a file that is not JSON, not DeepSpeed's, or that moves the
            optimizer off the GPU.
    """
    if settings.deepspeed in DEEPSPEED_STAGES:
        return DEEPSPEED_STAGES.index(settings.deepspeed)
    try:
        config = json.loads(read_bytes(Path(settings.deepspeed), MAX_DOCUMENT_BYTES))
        zero = config.get("zero_optimization", {})
        stage = int(zero.get("stage", 0))
        optimizer_device = zero.get("offload_optimizer", {}).get("device", "none")
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(
            f"DEEPSPEED={settings.deepspeed}: cannot be read as DeepSpeed's JSON ({error})."
        ) from error
    if optimizer_device not in ("none", None):
        raise SettingsError(
            f"DEEPSPEED={settings.deepspeed}: offload_optimizer is {optimizer_device!r}; allowed "
            "is 'none'. The optimizer holds only the adapters, which are small, and DeepSpeed's "
            "CPU optimizer would bypass the separate update of each player. "
            "Use offload_param to move the base model's weights."
        )
    return stage


def plan_line(settings: Settings, plan: BatchPlan, steps: int, reason: str = "") -> str:
    """Return the arithmetic of a step in one line.

    Args:
        settings: The run's settings.
        plan: What `batch_plan` made of them.
        steps: Optimizer steps of the run.
        reason: Why this many, if that is not obvious.
    """
    cut = f"{plan.micro_batches_per_player} micro-batches of {plan.per_device_train_batch_size}"
    if plan.tokens_per_micro_batch:
        cut = f"{plan.tokens_per_micro_batch} tokens at once"
    because = f" ({reason})" if reason else ""
    counted = "1 step" if steps == 1 else f"{steps} steps"
    processes = "1 process"
    if settings.nproc_per_node > 1:
        processes = f"{settings.nproc_per_node} processes"
    return (
        f"{counted}{because} of {plan.tasks} tasks × {settings.num_generations} games, "
        f"{plan.sequences} trajectories; "
        f"{processes} × {settings.players} players × {cut}"
    )


def check_updates(settings: Settings) -> None:
    """Refuse settings of updates that contradict each other or the number of players.

    Raises:
        SettingsError: They do.
    """
    _check_players(settings)
    if settings.eval_steps % settings.save_steps:
        raise SettingsError(
            f"HANABI_EVAL_STEPS={settings.eval_steps} with SAVE_STEPS={settings.save_steps}: the "
            "best validated version is kept as a checkpoint; set a multiple of SAVE_STEPS."
        )
    if not settings.eval_steps:
        for field in ("eval_dataset", "eval_lineups", "eval_best"):
            if field in settings.model_fields_set:
                raise SettingsError(
                    f"HANABI_{field.upper()}={getattr(settings, field)} with HANABI_EVAL_STEPS=0: "
                    "nothing is validated; set HANABI_EVAL_STEPS, e.g. to "
                    f"{settings.save_steps}, or unset HANABI_{field.upper()}."
                )
    check_objective(settings)
    check_teacher(settings)
    check_partners_are_given(settings)
    _check_resampling(settings)
    if settings.update == "best_response" and not (settings.eval_steps and settings.eval_patience):
        raise SettingsError(
            f"HANABI_UPDATE=best_response with HANABI_EVAL_STEPS={settings.eval_steps} "
            f"HANABI_EVAL_PATIENCE={settings.eval_patience}: a player is trained until that many "
            "validations in a row show no improvement; set both, e.g. HANABI_EVAL_STEPS=50 "
            "HANABI_EVAL_PATIENCE=3."
        )
    if settings.eval_patience and not settings.eval_steps:
        raise SettingsError(
            f"HANABI_EVAL_PATIENCE={settings.eval_patience} with HANABI_EVAL_STEPS=0: nothing is "
            "validated, so the run would never stop early; set HANABI_EVAL_STEPS, e.g. to "
            f"{settings.save_steps}, or unset HANABI_EVAL_PATIENCE."
        )
    if settings.warmup_steps and settings.lr_scheduler_type == "constant":
        raise SettingsError(
            f"WARMUP_STEPS={settings.warmup_steps} with LR_SCHEDULER_TYPE=constant: that schedule "
            "has no warmup, so it would have no effect; set "
            "LR_SCHEDULER_TYPE=constant_with_warmup, or unset WARMUP_STEPS."
        )
    if settings.start_from and settings.resume not in (None, "latest"):
        raise SettingsError(
            f"HANABI_START_FROM with RESUME={settings.resume}: both set the weights that the run "
            "starts with; unset one. RESUME=latest may stay: it wins once the run has a checkpoint."
        )


def trained_players(settings: Settings) -> tuple[str, ...]:
    """Return the players that can learn, in turn order, e.g. ("player_0",).

    Those are neither frozen nor replaced by a partner in every task. With
    HANABI_UPDATE=best_response only one of these is trained; see `training.phases`.
    """
    resting = {*settings.freeze, replaced_player(settings)}
    return tuple(name for name in player_names(settings.players) if name not in resting)


def _check_players(settings: Settings) -> None:
    """Refuse settings that name players who do not play, or who cannot be told apart."""
    names = player_names(settings.players)
    is_shared = settings.adapters == SHARED_ADAPTER
    taught = {settings.adapter_of(player) for player in parse_teachers(settings)}
    check_per_player(
        settings.per_player_values,
        (SHARED_ADAPTER,) if is_shared else names,
        only=dict.fromkeys(VARIABLES_OF_TEACHERS, taught),
    )
    for name in settings.freeze:
        if name not in names:
            raise SettingsError(
                f"HANABI_FREEZE={name}: not a player; allowed are {', '.join(names)}."
            )
    if settings.adapters == SHARED_ADAPTER:
        by_player = {
            "HANABI_FREEZE": bool(settings.freeze),
            f"HANABI_UPDATE={settings.update}": settings.update != "independent",
            "HANABI_SWAP_EVERY": bool(settings.swap_every),
        }
        for name, is_given in by_player.items():
            if is_given:
                raise SettingsError(
                    f"{name} with HANABI_ADAPTERS=shared: the players share one adapter and "
                    "cannot be told apart; unset it, or set HANABI_ADAPTERS=per_player."
                )
    if not trained_players(settings):
        replaced = replaced_player(settings)
        partner = f" and a partner in the seat of {replaced} in every task" if replaced else ""
        raise SettingsError(
            f"HANABI_FREEZE={','.join(settings.freeze)}{partner}: no player is left to train; "
            "remove at least one."
        )


def _check_decoupled_loss(settings: Settings) -> None:
    """Refuse HANABI_DECOUPLED_LOSS if it has no effect, or if nothing corrects for staleness."""
    if not settings.decoupled_loss:
        return
    if not settings.overlap:
        raise SettingsError(
            "HANABI_DECOUPLED_LOSS=1 with HANABI_OVERLAP=0: games are sampled by the policy that "
            "learns from them, so both losses are the same; set HANABI_OVERLAP, or unset "
            "HANABI_DECOUPLED_LOSS."
        )
    if settings.sampler_correction == "none":
        raise SettingsError(
            "HANABI_DECOUPLED_LOSS=1 with HANABI_SAMPLER_CORRECTION=none: nothing would weight "
            "games by their likelihood under the current policy; set "
            "HANABI_SAMPLER_CORRECTION=token_truncate, or unset HANABI_DECOUPLED_LOSS."
        )


def _check_resampling(settings: Settings) -> None:
    """Refuse HANABI_RESAMPLE_FLAT if it makes no sense."""
    if not settings.resample_flat:
        return
    given = f"HANABI_RESAMPLE_FLAT={settings.resample_flat}"
    if settings.overlap:
        raise SettingsError(
            f"{given} with HANABI_OVERLAP={settings.overlap}: games of an older version show which "
            "groups are flat, but the server would play the new ones with a newer version; unset "
            "one of them."
        )
    changes = {
        "HANABI_WHITEN_REWARDS=1": settings.whiten_rewards,
        "HANABI_WHITEN_ADVANTAGES=1": settings.whiten_advantages,
        "HANABI_KL_IN=reward": bool(settings.beta) and settings.kl_in == "reward",
    }
    for change, is_set in changes.items():
        if is_set:
            raise SettingsError(
                f"{given} with {change}: games of equal reward have a gradient, too, so a step "
                "without them is biased; unset one of them."
            )
    if settings.advantage not in GROUP_ESTIMATORS:
        raise SettingsError(
            f"{given} with HANABI_ADVANTAGE={settings.advantage}: this estimator compares games of "
            "different tasks, so flat groups count too, and a step without them is biased; unset "
            f"HANABI_RESAMPLE_FLAT, or use one of {', '.join(GROUP_ESTIMATORS)}."
        )
    if run_estimator(settings).compares_more_than_a_group():
        raise SettingsError(
            f"{given} with HANABI_NORMALIZE={settings.normalize or 'unset'} "
            f"HANABI_NORMALIZE_OVER={settings.normalize_over or 'unset'}: credits are compared "
            "across groups, so flat groups count too; unset HANABI_RESAMPLE_FLAT, or set "
            "HANABI_NORMALIZE_OVER=group."
        )
