"""Which micro-batches make which optimizer update of a step.

A step is one set of games, and the unit of versions, schedules, checkpoints and MAX_STEPS. It makes one update or
several: HANABI_UPDATES_PER_STEP passes over all players' micro-batches, or, with HANABI_UPDATE=sequential, these
passes over one player's after the other's. All updates of a run have the same number of micro-batches.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.settings import BatchPlan, Settings
from hanabi_grpo.types import adapter_of, player_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimizer update."""

    batches: tuple[dict[str, Any], ...]
    """Micro-batches of the players below and of nobody else whose data counts."""
    adapters: frozenset[str]
    """Who moves."""
    first_pass: bool
    """True where these micro-batches are met for the first time in the step: the policy is still that which sampled."""
    last_of_player: str = ""
    """The player that has made its last update of the step by this one; empty when it is everybody's."""


def updates_in_step(settings: Settings) -> int:
    """Return the number of optimizer updates of a step."""
    return settings.updates_per_step * (settings.players if settings.update == "sequential" else 1)


def micro_batches_in_update(settings: Settings, plan: BatchPlan) -> int:
    """Return the number of micro-batches of an update, on one rank."""
    return plan.gradient_accumulation_steps // updates_in_step(settings)


def player_order(settings: Settings, step: int) -> tuple[str, ...]:
    """Return the order of a sequential step, drawn anew for each (as in Kuba et al. 2022)."""
    names = list(player_names(settings.players))
    if settings.update == "sequential":
        random.Random(f"{settings.seed} {step}").shuffle(names)
    return tuple(names)


def order_updates(
    batches: Sequence[dict[str, Any]],
    settings: Settings,
    *,
    step: int,
    adapters: Sequence[str],
    active: Collection[str],
) -> list[Update]:
    """Return the updates of a step.

    Args:
        batches: Of `plan_batches`, each with a "grpo_batch" that names its player.
        settings: HANABI_UPDATE and HANABI_UPDATES_PER_STEP from here.
        step: Steps that were made before this one.
        adapters: Of the run.
        active: The adapters that have data in this step and may move.
    """
    passes = settings.updates_per_step
    active = frozenset(active)
    if settings.update != "sequential":
        return [
            Update(batches=tuple(map(_copy, batches)), adapters=active, first_pass=number == 0)
            for number in range(passes)
        ]
    updates = []
    for player in player_order(settings, step):
        own = [batch for batch in batches if batch["grpo_batch"].player == player]
        for number in range(passes):
            updates.append(
                Update(
                    batches=tuple(map(_copy, own)),
                    adapters=active & {adapter_of(player, adapters)},
                    first_pass=number == 0,
                    last_of_player=player if number == passes - 1 else "",
                )
            )
    return updates


def _copy(batch: Mapping[str, Any]) -> dict[str, Any]:
    # ms-swift writes further arguments of the forward pass into "model_inputs".
    return {**batch, "model_inputs": dict(batch["model_inputs"])}
