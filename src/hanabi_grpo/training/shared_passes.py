"""Which micro-batches share a forward and backward pass.

A micro-batch belongs to one player, and all but a player's last one are as large as
HANABI_TOKENS_PER_MICRO_BATCH allows. The last micro-batches of several players share a pass, as
many as fit under the same limit. Loss, mismatch check and metrics are still computed for each
micro-batch separately, and gradients are equal bit by bit to those of separate passes
(`model.row_owners`).

All processes know the weight of every micro-batch, so all of them make the same passes.
"""

from collections.abc import Sequence

from hanabi_grpo.training.micro_batch import MicroBatch

Pass = tuple[MicroBatch, ...]
"""Micro-batches that are computed together: one, or several of different players."""


def own_passes(batches: Sequence[MicroBatch]) -> tuple[Pass, ...]:
    """Return a separate pass for each micro-batch."""
    return tuple((batch,) for batch in batches)


def shared_passes(batches: Sequence[MicroBatch], limit: int) -> tuple[Pass, ...]:
    """Return the passes of one update.

    A player's micro-batches stay in order, because its gradient is accumulated in this order.

    Args:
        batches: Micro-batches of one part of the step's games, player by player.
        limit: Largest total weight of the micro-batches in a shared pass.
    """
    last_of = {batch.player: batch for batch in batches}
    full = [batch for batch in batches if batch is not last_of[batch.player]]
    shared: list[list[MicroBatch]] = []
    weights: list[float] = []
    for batch in last_of.values():
        for number, weight in enumerate(weights):
            if weight + batch.weight <= limit:
                shared[number].append(batch)
                weights[number] += batch.weight
                break
        else:
            shared.append([batch])
            weights.append(batch.weight)
    return (*own_passes(full), *map(tuple, shared))
