"""From whatever a model wrote to a move, or to None. Linear in the length of the text; never raises."""

from hanabi_grpo.envs.hanabi.rules.actions import parse_action
from hanabi_grpo.envs.hanabi.rules.view import Action
from hanabi_grpo.envs.replies import answer_lines


def parse_reply(text: str, *, num_players: int, player: int) -> Action | None:
    """Return the last line of a reply that is a move.

    Think blocks are not read. A line counts when it is a move after markdown, quotes and a label such as
    `Action:` are taken off; prose around a move on the same line makes it none.

    Args:
        text: Any string at all.
        num_players: Decides whether a hint may leave out its target.
        player: Seat that replied, from 0.

    Returns:
        The move, which the rules may still forbid; None when there is none, or when thinking was cut off.
    """
    moves = (parse_action(line, num_players=num_players, player=player) for line in answer_lines(text))
    return next((move for move in moves if move is not None), None)
