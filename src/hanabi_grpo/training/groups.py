"""Groups: the NUM_GENERATIONS episodes of one task. A step has several groups."""

from collections.abc import Sequence

from hanabi_grpo.types import Episode, is_trained


def flatten_groups(groups: Sequence[Sequence[Episode]]) -> list[Episode]:
    """Return the episodes of all groups, in order."""
    return [episode for group in groups for episode in group]


def trained_groups(
    groups: Sequence[Sequence[Episode]], player: int, trained_seats: Sequence[str]
) -> list[list[Episode]]:
    """Return, for each group, the episodes in which a player's seat is trained.

    Args:
        groups: The step's groups.
        player: Number of the seat.
        trained_seats: Per seat, the adapter that is trained there, see `types.is_trained`.
    """
    trained = []
    for group in groups:
        episodes = [episode for episode in group if is_trained(episode, player, trained_seats)]
        trained.append(episodes)
    return trained
