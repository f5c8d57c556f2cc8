"""How deals, games and micro-batches make one optimizer step."""

import json
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import DEEPSPEED_STAGES, Settings
from hanabi_grpo.settings.updates import check_updates


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The sizes of one step."""

    deals: int
    games: int
    """deals × games of each deal."""
    sequences: int
    """games × players: one trajectory each."""
    micro_batches_per_player: int
    """Of each trainer process, as Hugging Face's loop counts them; by tokens it is one, which is cut further."""
    gradient_accumulation_steps: int
    """HANABI_UPDATES_PER_STEP × players × micro_batches_per_player: a micro-batch holds one player only."""
    per_device_train_batch_size: int
    """Trajectories of one micro-batch; by tokens the most that one of a player can be, in whole groups."""
    tokens_per_micro_batch: int = 0
    """Padding included; 0: micro-batches are cut by trajectories."""


def batch_plan(settings: Settings) -> BatchPlan:
    """Return the sizes of one step.

    Raises:
        SettingsError: The games do not divide among processes and micro-batches; the message has the arithmetic. Or
            settings of updates that do not go together.
    """
    check_updates(settings)
    if settings.overlap and deepspeed_stage(settings) == 3:
        raise SettingsError(
            f"HANABI_OVERLAP=1 with DEEPSPEED={settings.deepspeed}: under ZeRO-3 no process holds whole adapters, so "
            "those of the version that sampled cannot be kept; take zero2, or unset HANABI_OVERLAP."
        )
    deals, group = settings.deals_per_step, settings.num_generations
    processes, batch = settings.nproc_per_node, settings.per_device_train_batch_size
    if processes > 1 and settings.deepspeed == "none":
        raise SettingsError(
            f"NPROC_PER_NODE={processes} DEEPSPEED=none: several processes need DEEPSPEED=zero1, zero2 or zero3, "
            "because a micro-batch leaves the other players' adapters without gradients."
        )
    games = deals * group
    tokens = tokens_per_micro_batch(settings)
    micro_batches = 1
    if tokens:
        # What ms-swift multiplies must be whole groups; which rank has how many trajectories is `cut_by_tokens`'s.
        batch = -(-deals // processes) * group
    elif games % (processes * batch):
        raise SettingsError(
            f"{deals} deals × {group} games = {games} games do not divide by NPROC_PER_NODE={processes} × "
            f"PER_DEVICE_TRAIN_BATCH_SIZE={batch} = {processes * batch}: {_ways_out(settings)}."
        )
    else:
        micro_batches = games // (processes * batch)
    return BatchPlan(
        deals=deals,
        games=games,
        sequences=games * settings.players,
        micro_batches_per_player=micro_batches,
        gradient_accumulation_steps=settings.updates_per_step * settings.players * micro_batches,
        per_device_train_batch_size=batch,
        tokens_per_micro_batch=tokens,
    )


def tokens_per_micro_batch(settings: Settings) -> int:
    """Return the most tokens that a micro-batch holds, see `training.batching`; 0 where trajectories are counted.

    PER_DEVICE_TRAIN_BATCH_SIZE that is given alone counts trajectories.
    """
    given = settings.model_fields_set
    by_rows = "per_device_train_batch_size" in given and "tokens_per_micro_batch" not in given
    return 0 if by_rows else settings.tokens_per_micro_batch


def deepspeed_stage(settings: Settings) -> int:
    """Return the ZeRO stage of DEEPSPEED, 0 without DeepSpeed.

    Raises:
        SettingsError: The configuration file is not JSON.
    """
    if settings.deepspeed in DEEPSPEED_STAGES:
        return DEEPSPEED_STAGES.index(settings.deepspeed)
    try:
        config = json.loads(Path(settings.deepspeed).read_text(encoding="utf-8"))
        return int(config.get("zero_optimization", {}).get("stage", 0))
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(f"DEEPSPEED={settings.deepspeed}: cannot be read as DeepSpeed's JSON ({error}).") from error


def _ways_out(settings: Settings) -> str:
    deals, group = settings.deals_per_step, settings.num_generations
    processes, batch = settings.nproc_per_node, settings.per_device_train_batch_size
    games, most = deals * group, deals + processes * batch
    ways = {
        "PER_DEVICE_TRAIN_BATCH_SIZE": (batch, [n for n in range(1, games + 1) if not games % (processes * n)]),
        "HANABI_DEALS_PER_STEP": (deals, [n for n in range(1, most + 1) if not n * group % (processes * batch)]),
    }
    said = []
    for name, (wanted, fitting) in ways.items():
        nearest = [n for n in fitting if n < wanted][-1:] + [n for n in fitting if n > wanted][:1]
        said += [f"{name}={' or '.join(map(str, nearest))}"] if nearest else []
    return "the nearest that fit are " + ", or ".join(said)


def plan_line(settings: Settings, plan: BatchPlan, steps: int) -> str:
    """Return the arithmetic of a step in one line."""
    cut = (
        f"micro-batches of up to {plan.tokens_per_micro_batch} tokens"
        if plan.tokens_per_micro_batch
        else f"{plan.micro_batches_per_player} micro-batches of {plan.per_device_train_batch_size}"
    )
    return (
        f"{steps} steps of {plan.deals} deals × {settings.num_generations} games = {plan.games} games, "
        f"{plan.sequences} trajectories: {settings.nproc_per_node} process(es) × {settings.players} players × {cut}"
    )
