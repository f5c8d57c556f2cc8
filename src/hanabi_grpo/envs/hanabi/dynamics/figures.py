"""All figures of one step that tell how play changes."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.dynamics.boards import board_figures
from hanabi_grpo.envs.hanabi.dynamics.hints import hint_figures
from hanabi_grpo.envs.hanabi.dynamics.moves import move_figures
from hanabi_grpo.envs.hanabi.dynamics.played import replayed
from hanabi_grpo.envs.hanabi.dynamics.replies import reply_figures
from hanabi_grpo.types import Episode


def dynamics_figures(
    groups: Sequence[Sequence[Episode]], own: Sequence[str], *, reply_limit: int = 0, end_id: int | None = None
) -> dict[str, float]:
    """Return the figures of `moves`, `hints`, `replies` and `boards`; nothing for a step without games.

    Args:
        groups: Per deal its games.
        own: Words of the trained seats, see `partners.own_seats`; empty: all seats are.
        reply_limit: Most tokens of one reply; 0: unknown.
        end_id: The token that ends a reply.
    """
    episodes = [episode for group in groups for episode in group]
    if not episodes:
        return {}
    games = replayed(groups, own)
    return {
        **board_figures(episodes, games),
        **hint_figures(games),
        **move_figures(games),
        **reply_figures(episodes, own, reply_limit=reply_limit, end_id=end_id),
    }
