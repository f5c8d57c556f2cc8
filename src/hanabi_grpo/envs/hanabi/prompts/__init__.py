"""What a player is told and how its answer is read, in the style `full` (readable) or `compact`
(words of tiny models).

All of it is a pure function of a `PlayerView`, so nothing here can leak a hidden card.
"""

from hanabi_grpo.envs.hanabi.prompts.compact import compact_turn, compact_vocabulary
from hanabi_grpo.envs.hanabi.prompts.deductions import Counted, Deductions, seen_with
from hanabi_grpo.envs.hanabi.prompts.full import full_system, full_turn
from hanabi_grpo.envs.hanabi.rules.actions import parse_action
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView
from hanabi_grpo.envs.replies import answer_lines


def system_prompt(spec: GameSpec, style: str, player: int, *, bomb_rule: str = "zero") -> str:
    """Return the rules as told to one player, or "" in the compact style: a tiny model learns them
    by playing.
    """
    return "" if style == "compact" else full_system(spec, player, bomb_rule)


def turn_prompt(
    view: PlayerView, *, style: str, legal_moves: bool, deductions: Deductions = "possible"
) -> str:
    """Return the message that asks `view.player` for its move: the whole current state, readable on
    its own.
    """
    view = seen_with(view, deductions)
    write = compact_turn if style == "compact" else full_turn
    return write(
        view, legal_moves=legal_moves, counted=Counted(view) if deductions == "counted" else None
    )


def parse_reply(text: str, *, num_players: int, player: int) -> Action | None:
    """Return the last line of any text that is a move, which the rules may forbid, or None; see
    `answer_lines`.
    """
    moves = (
        parse_action(line, num_players=num_players, player=player) for line in answer_lines(text)
    )
    return next((move for move in moves if move is not None), None)
