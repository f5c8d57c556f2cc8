"""A game played again as text: the table before each move and what the move did, and the table at the end."""

from collections.abc import Iterator

from hanabi_grpo.envs.base import Frame
from hanabi_grpo.envs.hanabi.replays.timeline import Board, Timeline
from hanabi_grpo.envs.hanabi.replays.wording import deed, possible
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.types import player_name


def frames(timeline: Timeline) -> Iterator[Frame]:
    """Yield the frames of a game; beside each card stands what hints leave possible for it."""
    players = timeline.recording.players
    names = [
        name if name == player_name(seat) else f"{name} ({player_name(seat)})" for seat, name in enumerate(players)
    ]
    for number, (board, move) in enumerate(zip(timeline.boards, timeline.moves, strict=False), 1):
        did = f"{players[move.turn.player]} {deed(move.event, players)}"
        yield Frame(title=f"turn {number}", text=visible(f"{_table(board, names)}\n{did}"))
    last = timeline.boards[-1]
    yield Frame(title=f"end, {sum(last.fireworks)} points on the table", text=visible(_table(last, names)))


def _table(board: Board, names: list[str]) -> str:
    stacks = " ".join(f"{COLOR_LETTERS[color]}{height}" for color, height in enumerate(board.fireworks))
    left = f"deck {board.deck_size}" if board.turns_left is None else f"moves left {board.turns_left}"
    gone = f"  discarded {' '.join(map(str, board.discards))}" if board.discards else ""
    lines = [f"lives {board.lives}  hints {board.hints}  {left}  {stacks}{gone}"]
    for name, hand, knowledge in zip(names, board.hands, board.knowledge, strict=True):
        cards = (f"{card}({possible(known)})" for card, known in zip(hand, knowledge, strict=True))
        lines.append(f"  {name}  {' '.join(cards)}")
    return "\n".join(lines)
