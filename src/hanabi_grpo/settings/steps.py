"""What one optimizer step is: how tasks, games and micro-batches make it, and who is trained in
it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import DEEPSPEED_STAGES, Settings
from hanabi_grpo.training.estimators import GROUP_ESTIMATORS
from hanabi_grpo.types import SHARED_ADAPTER, player_names


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The sizes of one step."""

    tasks: int
    games: int
    """tasks × games of each task."""
    sequences: int
    """games × players: one trajectory each."""
    micro_batches_per_player: int
    """Of each trainer process, as Hugging Face's loop counts them; by tokens it is one, which is
    cut further.
    """
    gradient_accumulation_steps: int
    """HANABI_UPDATES_PER_STEP × players × micro_batches_per_player: a micro-batch holds one player
    only.
    """
    per_device_train_batch_size: int
    """Trajectories of one micro-batch; by tokens the most that one of a player can be, in whole
    groups.
    """
    tokens_per_micro_batch: int = 0
    """Padding included; 0: micro-batches are cut by trajectories."""


def batch_plan(settings: Settings) -> BatchPlan:
    """Return the sizes of one step; SettingsError where the games do not divide, or settings do not
    go together.
    """
    check_updates(settings)
    if settings.overlap and deepspeed_stage(settings) == 3:
        raise SettingsError(
            f"HANABI_OVERLAP=1 with DEEPSPEED={settings.deepspeed}: under ZeRO-3 no process holds "
            "whole adapters, so "
            "those of the version that sampled cannot be kept; take zero2, or unset HANABI_OVERLAP."
        )
    tasks, group = settings.tasks_per_step, settings.num_generations
    processes, batch = settings.nproc_per_node, settings.per_device_train_batch_size
    if processes > 1 and settings.deepspeed == "none":
        raise SettingsError(
            f"NPROC_PER_NODE={processes} DEEPSPEED=none: several processes need DEEPSPEED=zero1, "
            "zero2 or zero3, "
            "because a micro-batch leaves the other players' adapters without gradients."
        )
    games = tasks * group
    tokens = tokens_per_micro_batch(settings)
    micro_batches = 1
    if tokens:
        # What ms-swift multiplies must be whole groups; which rank has how many trajectories is
        # `cut_by_tokens`'s.
        batch = -(-tasks // processes) * group
    elif games % (processes * batch):
        raise SettingsError(
            f"{tasks} tasks × {group} games = {games} games do not divide by "
            f"NPROC_PER_NODE={processes} × "
            f"PER_DEVICE_TRAIN_BATCH_SIZE={batch} = {processes * batch}: choose "
            "HANABI_TASKS_PER_STEP or "
            "NUM_GENERATIONS so that they do, a smaller batch, or unset it: micro-batches by "
            "tokens always fit."
        )
    else:
        micro_batches = games // (processes * batch)
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
    """Return the most tokens that a micro-batch holds, see `training.batching`; 0 where
    trajectories are counted.

    PER_DEVICE_TRAIN_BATCH_SIZE that is given alone counts trajectories.
    """
    given = settings.model_fields_set
    by_rows = "per_device_train_batch_size" in given and "tokens_per_micro_batch" not in given
    return 0 if by_rows else settings.tokens_per_micro_batch


def deepspeed_stage(settings: Settings) -> int:
    """Return the ZeRO stage of DEEPSPEED, 0 without DeepSpeed; SettingsError where its file is not
    JSON.
    """
    if settings.deepspeed in DEEPSPEED_STAGES:
        return DEEPSPEED_STAGES.index(settings.deepspeed)
    try:
        config = json.loads(Path(settings.deepspeed).read_text(encoding="utf-8"))
        return int(config.get("zero_optimization", {}).get("stage", 0))
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(
            f"DEEPSPEED={settings.deepspeed}: cannot be read as DeepSpeed's JSON ({error})."
        ) from error


def plan_line(settings: Settings, plan: BatchPlan, steps: int) -> str:
    """Return the arithmetic of a step in one line."""
    cut = f"{plan.micro_batches_per_player} micro-batches of {plan.per_device_train_batch_size}"
    if plan.tokens_per_micro_batch:
        cut = f"{plan.tokens_per_micro_batch} tokens at once"
    return (
        f"{steps} steps of {plan.tasks} tasks × {settings.num_generations} games, "
        f"{plan.sequences} trajectories; "
        f"{settings.nproc_per_node} process(es) × {settings.players} players × {cut}"
    )


def check_updates(settings: Settings) -> None:
    """Refuse settings of updates that contradict each other or the number of players, by a
    SettingsError.
    """
    names = player_names(settings.players)
    for name in settings.freeze:
        if name not in names:
            raise SettingsError(
                f"HANABI_FREEZE={name}: not at the table; allowed are {', '.join(names)}."
            )
    apart = {
        "HANABI_FREEZE": settings.freeze,
        f"HANABI_UPDATE={settings.update}": settings.update != "independent",
        "HANABI_SWAP_EVERY": settings.swap_every,
    }
    for name in [
        name for name, given in apart.items() if given and settings.adapters == SHARED_ADAPTER
    ]:
        raise SettingsError(
            f"{name} with HANABI_ADAPTERS=shared: the players are one adapter, which cannot be "
            "told apart; unset it, "
            "or set HANABI_ADAPTERS=per_player."
        )
    if not trained_players(settings):
        raise SettingsError(
            f"HANABI_FREEZE={','.join(settings.freeze)}: nobody is left to train; leave out at "
            "least one player."
        )
    if settings.eval_steps % settings.save_steps:
        raise SettingsError(
            f"HANABI_EVAL_STEPS={settings.eval_steps} with SAVE_STEPS={settings.save_steps}: a "
            "version that is "
            "validated is kept as a checkpoint when it is the best; set a multiple of SAVE_STEPS."
        )
    if settings.resample_flat and settings.overlap:
        raise SettingsError(
            f"HANABI_RESAMPLE_FLAT={settings.resample_flat} with HANABI_OVERLAP=1: a step's games "
            "are a version old "
            "when they show which tasks are flat, and the server plays further ones with a newer "
            "version; unset one."
        )
    if settings.resample_flat and settings.advantage not in GROUP_ESTIMATORS:
        raise SettingsError(
            f"HANABI_RESAMPLE_FLAT={settings.resample_flat} with "
            f"HANABI_ADVANTAGE={settings.advantage}: it learns "
            "from games of different tasks, so a flat group teaches too, and a step without any "
            "is biased; unset "
            f"HANABI_RESAMPLE_FLAT, or take one of {', '.join(GROUP_ESTIMATORS)}."
        )
    if settings.update == "best_response" and not (settings.eval_steps and settings.eval_patience):
        raise SettingsError(
            f"HANABI_UPDATE=best_response with HANABI_EVAL_STEPS={settings.eval_steps} "
            "HANABI_EVAL_PATIENCE="
            f"{settings.eval_patience}: a player is trained until so many validations in a row "
            "were no better; set "
            "both, e.g. HANABI_EVAL_STEPS=50 HANABI_EVAL_PATIENCE=3."
        )
    if settings.start_from and settings.resume not in (None, "latest"):
        raise SettingsError(
            f"HANABI_START_FROM with RESUME={settings.resume}: both say which weights the run "
            "starts with; unset one. "
            "RESUME=latest may stay: it wins once the run has a checkpoint."
        )


def trained_players(settings: Settings) -> tuple[str, ...]:
    """Return the players that are not frozen, in turn order, e.g. ("player_0",).

    With HANABI_UPDATE=best_response the data of one of these counts, which `training.phases` says.
    """
    return tuple(name for name in player_names(settings.players) if name not in settings.freeze)
