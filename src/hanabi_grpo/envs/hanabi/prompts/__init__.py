"""What a player reads and how its reply is parsed.

There are two styles: `full` (readable sentences) and `compact` (words for tiny models). All texts
are pure functions of a `PlayerView`, so nothing here can leak a hidden card.
"""

from hanabi_grpo.envs.hanabi.prompts.compact import (
    compact_turn,
    compact_vocabulary,
    joined_word_parts,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import (
    COUNTED_LEVELS,
    RECALLED,
    Counted,
    Deductions,
    recalled_hint,
    view_with,
)
from hanabi_grpo.envs.hanabi.prompts.full import full_system, full_turn
from hanabi_grpo.envs.hanabi.rules.actions import parse_action
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView
from hanabi_grpo.envs.replies import answer_lines


def system_prompt(spec: GameSpec, style: str, player: int, *, bomb_rule: str = "zero") -> str:
    """Return the rules for one player as a system message.

    Args:
        spec: The board.
        style: "full", or "compact", which has no system message: a tiny model learns the rules by
            playing.
        player: The seat that reads it.
        bomb_rule: "zero" or "keep": what losing the last life does to the points scored so far.
    """
    if style == "compact":
        return ""
    return full_system(spec, player, bomb_rule)


def turn_prompt(
    view: PlayerView, *, style: str, legal_moves: bool, deductions: Deductions = "possible"
) -> str:
    """Return the message that asks `view.player` for its move.

    It contains the whole current state, so no earlier message is needed.

    Args:
        view: What the player may know.
        style: "full" or "compact".
        legal_moves: Whether to list the legal moves.
        deductions: What the prompt works out for its reader, see `prompts.deductions`.
    """
    view = view_with(view, deductions)
    counted = Counted(view) if deductions in COUNTED_LEVELS else None
    recalled = recalled_hint(view) if deductions == RECALLED else None
    if style == "full":
        return full_turn(view, legal_moves=legal_moves, counted=counted, recalled=recalled)
    return compact_turn(
        view,
        legal_moves=legal_moves,
        deductions=deductions,
        counted=counted,
        recalled=recalled,
    )


def parse_reply(text: str, *, num_players: int, player: int) -> Action | None:
    """Return the last line of a reply that is a move, or None; see `replies.answer_lines`.

    Args:
        text: Any text.
        num_players: Players of the game.
        player: The seat that replies.

    Returns:
        The move, which the rules may forbid.
    """
    for line in answer_lines(text):
        action = parse_action(line, num_players=num_players, player=player)
        if action is not None:
            return action
    return None
