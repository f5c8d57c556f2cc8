"""Plans of micro-batches that a test writes down, by default of one process and one batch."""

from hanabi_grpo.training.batching import CutPlan


def made_cut(
    *,
    tokens: int = 0,
    micro_batches: int = 1,
    rank: int = 0,
    world_size: int = 1,
    shared: bool = False,
) -> CutPlan:
    """Return how a player's rows become micro-batches.

    Args:
        tokens: Most tokens of a micro-batch; 0: count rows.
        micro_batches: Their number, where rows are counted.
        rank: Number of the process.
        world_size: Number of processes.
        shared: Whether shared prefixes are computed once.
    """
    return CutPlan(
        tokens_per_micro_batch=tokens,
        micro_batches_per_player=micro_batches,
        rank=rank,
        world_size=world_size,
        shares_prefixes=shared,
    )
