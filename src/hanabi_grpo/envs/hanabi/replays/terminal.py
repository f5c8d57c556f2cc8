"""Recorded games on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.selection import num_bad_replies
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.replays.timeline import Board, Move, Timeline
from hanabi_grpo.envs.hanabi.replays.wording import deed, earned, outcome, possible, signed
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Card, Knowledge
from hanabi_grpo.types import ReplyKind, player_name

CARD_STYLES = ("red", "yellow", "green", "bold", "blue")
"""Of the colours of cards; their letters are always printed too."""


def games_table(recordings: Sequence[Recording], title: str) -> Table:
    """Return one line per game."""
    table = Table("game", "deal", "score", "ending", "turns", "bad replies", title=title)
    for column in (0, 4, 5):
        table.columns[column].justify = "right"
    for one in recordings:
        episode = one.episode
        score, _, ending = outcome(one, one.spec().reachable_max).partition(", ")
        deal = visible(f"{episode.suite}/{episode.seed} #{episode.game}")
        bad = str(num_bad_replies(one) or "")
        table.add_row(str(one.number), Text(deal), score, ending, str(len(episode.turns)), bad)
    return table


def print_game(
    console: Console, timeline: Timeline, *, prompts: bool = False, hands: bool = False, player: int | None = None
) -> None:
    """Print one game turn by turn.

    Args:
        console: Where to.
        timeline: The game.
        prompts: Also what the player was shown.
        hands: The mover's own cards too; else what it knows of them.
        player: Only turns of this seat.
    """
    console.print(_header(timeline))
    for number, (board, move) in enumerate(zip(timeline.boards, timeline.moves, strict=False)):
        if player is None or move.turn.player == player:
            console.print(_turn(timeline, number, board, move, prompts=prompts, hands=hands))
    last = timeline.boards[-1]
    console.print(Text.assemble("end", "   ", _table_line(timeline, last)))
    for seat, hand in enumerate(last.hands):
        known = last.knowledge[seat]
        cards = Text(" ").join(_card(card, one) for card, one in zip(hand, known, strict=True))
        console.print(Text.assemble("  ", _name(timeline, seat), "  ", cards))
    console.print()


def _header(timeline: Timeline) -> Panel:
    recording, spec = timeline.recording, timeline.spec
    episode = recording.episode
    lines = [
        f"{episode.preset}, {episode.num_players} players · deal {episode.suite}/{episode.seed}, game {episode.game} "
        f"of its group · {recording.source}",
        outcome(recording, spec.reachable_max),
        "returns: "
        + ", ".join(f"{_name(timeline, seat)} {signed(episode.reward(seat))}" for seat in range(episode.num_players)),
    ]
    return Panel(Text(visible("\n".join(lines))), title=f"game {recording.number}", title_align="left")


def _turn(timeline: Timeline, number: int, board: Board, move: Move, *, prompts: bool, hands: bool) -> Table:
    turn = move.turn
    version = "" if turn.version is None else f" · version {turn.version}"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=9)
    grid.add_column(ratio=1)
    title = Text.assemble((_name(timeline, turn.player), "bold"), version, "   ", _table_line(timeline, board))
    grid.add_row(Text(f"turn {number + 1}", style="bold"), title)
    for seat, hand in enumerate(board.hands):
        hidden = seat == turn.player and not hands
        known = board.knowledge[seat]
        cards = Text(" ").join(_card(None if hidden else card, one) for card, one in zip(hand, known, strict=True))
        grid.add_row("", Text.assemble(_name(timeline, seat), "  ", cards))
    if prompts:
        grid.add_row(Text("  saw", style="dim"), Text(visible(move.prompt), style="dim"))
    if move.thought:
        grid.add_row(Text("  thought", style="dim"), Text(visible(move.thought), style="italic"))
    grid.add_row(Text("  said", style="dim"), Text(visible(move.said)))
    did = Text(deed(move.event, timeline.recording.players))
    if turn.kind is not ReplyKind.LEGAL:
        why = "illegal" if turn.kind is ReplyKind.ILLEGAL else "no move in the reply"
        did = Text.assemble((f"{why}; in its place: ", "red"), did)
    grid.add_row(Text("  did", style="dim"), did)
    parts = earned(turn.rewards[turn.player]) or "nothing"
    advantage = "" if move.advantage is None else f" · advantage {move.advantage:+.2f}"
    grid.add_row(Text("  earned", style="dim"), Text(parts + advantage))
    return grid


def _table_line(timeline: Timeline, board: Board) -> Text:
    line = Text(f"lives {board.lives}  hints {board.hints}  ")
    line.append(f"deck {board.deck_size}  " if board.turns_left is None else f"moves left {board.turns_left}  ")
    for color, height in enumerate(board.fireworks):
        line.append(f"{COLOR_LETTERS[color]}{height} ", style=CARD_STYLES[color])
    if board.discards:
        line.append(" discarded ")
        line.append_text(Text(" ").join(_card(card, None) for card in board.discards))
    return line


def _card(card: Card | None, known: Knowledge | None) -> Text:
    text = Text("?") if card is None else Text(str(card), style=CARD_STYLES[card.color])
    return text if known is None else Text.assemble(text, (f"({possible(known)})", "dim"))


def _name(timeline: Timeline, seat: int) -> str:
    name = timeline.recording.players[seat]
    return name if name == player_name(seat) else visible(f"{name} ({player_name(seat)})")
