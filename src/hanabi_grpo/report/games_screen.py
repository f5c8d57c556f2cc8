"""Recorded games of any environment on the terminal."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.base import Frame
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.report.played import frames_of, game_texts, outcome, returns
from hanabi_grpo.rollout.recordings import num_bad_replies
from hanabi_grpo.terminal import ColumnKind, FittedTable
from hanabi_grpo.texts import visible
from hanabi_grpo.types import task_name

_COLUMNS = ("game", "task", "returns", "ending", "turns", "bad replies")
_KINDS = (
    ColumnKind.NAME,
    ColumnKind.NAME,
    ColumnKind.TEXT,
    ColumnKind.TEXT,
    ColumnKind.FIGURE,
    ColumnKind.FIGURE,
)
_NAME_WIDTH = 9
"""Characters of the column "saw", "thought", …"""


def games_table(recordings: Sequence[Recording], title: str) -> FittedTable:
    """Return a table with a row per game."""
    table = FittedTable(title, _COLUMNS, _KINDS)
    for recording in recordings:
        episode = recording.episode
        task = visible(f"{task_name(episode.suite, episode.seed)} #{episode.game}")
        num_bad = num_bad_replies(recording)
        table.add_row(
            str(recording.number),
            task,
            returns(episode),
            outcome(episode),
            str(len(episode.moves)),
            str(num_bad) if num_bad else "",
        )
    return table


def print_game(
    console: Console,
    recording: Recording,
    settings: Mapping[str, Any],
    advantages: Sequence[float] | None,
    *,
    prompts: bool = False,
    player: int | None = None,
) -> None:
    """Print one game: per step its frame, then each player's thoughts, reply, action and rewards.

    Args:
        console: The terminal.
        recording: The game.
        settings: Settings of its run, by variable.
        advantages: Advantage of each turn; None: not known.
        prompts: Whether to print the players' prompts.
        player: The only player whose turns are printed; None: all players.

    Raises:
        SettingsError: The game cannot be played again.
    """
    episode = recording.episode
    frames = frames_of(recording, settings)
    texts = game_texts(recording, advantages, prompts=prompts)
    head = (
        f"{episode.env} {texts['preset']} · {texts['task']}, game {episode.game} of its group "
        f"· {texts['source']}\n{texts['outcome']}\nreturns: {texts['shown']}"
    )
    panel = Panel(Text(visible(head)), title=f"game {recording.number}", title_align="left")
    console.print(panel)
    steps = groupby(enumerate(episode.turns), lambda numbered: numbered[1].step)
    for position, (_, turns) in enumerate(steps):
        moves = []
        for number, turn in turns:
            if player in (None, turn.player):
                moves.append(texts["moves"][number])
        if moves and position < len(frames):
            console.print(_frame_text(frames[position]))
        for move in moves:
            console.print(_move_grid(move))
    if len(frames) > 1:
        console.print(Text.assemble(_frame_text(frames[-1]), "\n"))


def _frame_text(frame: Frame) -> Text:
    return Text(f"{frame.title}\n{frame.text}")


def _move_grid(move: Mapping[str, str]) -> Table:
    """Return a player's prompt, thoughts, reply, action and rewards on one turn."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=_NAME_WIDTH)
    grid.add_column(ratio=1)
    grid.add_row("", Text(move["player"], style="bold"))
    action = Text()
    if move["bad"]:
        action.append(f"{move['bad']} reply; played instead: ", style="red")
    action.append(move["did"])
    rows = {
        "saw": Text(move["prompt"]),
        "thought": Text(move["thought"]),
        "said": Text(move["said"]),
        "did": action,
        "result": Text(move["result"]),
        "earned": Text(move["facts"] or "nothing"),
    }
    for name, text in rows.items():
        if text.plain:
            grid.add_row(Text(f"  {name}", style="dim"), text)
    return grid
