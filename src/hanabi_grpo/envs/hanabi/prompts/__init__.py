"""What a player is told and how its answer is read.

- `style`: the two ways to word an observation.
- `rules`: the system prompt, once per conversation.
- `full`, `compact`: the message of one turn, per style; a pure function of a `PlayerView`.
- `replies`: from whatever the model wrote to a move, or to None.

Nothing here sees a `Game`, so nothing here can leak a hidden card.
"""

from hanabi_grpo.envs.hanabi.prompts.compact import compact_turn, compact_vocabulary
from hanabi_grpo.envs.hanabi.prompts.full import full_turn
from hanabi_grpo.envs.hanabi.prompts.replies import parse_reply
from hanabi_grpo.envs.hanabi.prompts.rules import system_prompt
from hanabi_grpo.envs.hanabi.prompts.style import ObservationStyle
from hanabi_grpo.envs.hanabi.rules.view import PlayerView

__all__ = ["ObservationStyle", "compact_vocabulary", "parse_reply", "system_prompt", "turn_prompt"]


def turn_prompt(view: PlayerView, *, style: ObservationStyle | str, legal_moves: bool) -> str:
    """Return the message that asks `view.player` for its move.

    It is the whole current state, so it can be read without the messages before it.

    Args:
        view: What the player may see.
        style: How to word it.
        legal_moves: Also list the legal moves (only when it is this player's turn).
    """
    if ObservationStyle(style) is ObservationStyle.COMPACT:
        return compact_turn(view, legal_moves=legal_moves)
    return full_turn(view, legal_moves=legal_moves)
