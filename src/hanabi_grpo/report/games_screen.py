"""Recorded games of any environment on the terminal."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.selection import num_bad_replies
from hanabi_grpo.envs.hanabi.replays.texts import split_reply, visible
from hanabi_grpo.envs.hanabi.replays.wording import earned
from hanabi_grpo.report.played import frames_of, outcome, returns
from hanabi_grpo.types import ReplyKind, Turn


def games_table(recordings: Sequence[Recording], title: str) -> Table:
    """Return one line per game."""
    table = Table("game", "task", "returns", "ending", "turns", "bad replies", title=title)
    for column in (0, 4, 5):
        table.columns[column].justify = "right"
    for one in recordings:
        episode = one.episode
        task = visible(f"{episode.suite}/{episode.seed} #{episode.game}")
        bad, turns = str(num_bad_replies(one) or ""), str(len(episode.turns))
        table.add_row(str(one.number), Text(task), returns(episode), Text(outcome(episode)), turns, bad)
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
    """Print one game: the frame of each step, then what each player thought, said, did and earned.

    `settings` are those of its run, by variable. With `prompts` also what the players were shown; of `player` alone, or
    of all. Raises a SettingsError when it cannot be played again.
    """
    episode = recording.episode
    frames = frames_of(recording, settings)
    head = f"{episode.env} {episode.preset}, {episode.num_players} players · {episode.suite}/{episode.seed}, game "
    head += f"{episode.game} of its group · {recording.source}\n{outcome(episode)}\nreturns: {returns(episode)}"
    console.print(Panel(Text(visible(head)), title=f"game {recording.number}", title_align="left"))
    values = dict(enumerate(advantages or ()))
    for place, (_, turns) in enumerate(groupby(enumerate(episode.turns), lambda item: item[1].step)):
        shown = [(number, turn) for number, turn in turns if player in (None, turn.player)]
        if shown and place < len(frames):
            console.print(Text(f"{frames[place].title}\n{frames[place].text}"))
        for number, turn in shown:
            console.print(_turn(recording, turn, values.get(number), prompts=prompts))
    if len(frames) > 1:
        console.print(Text(f"{frames[-1].title}\n{frames[-1].text}\n"))


def _turn(recording: Recording, turn: Turn, advantage: float | None, *, prompts: bool) -> Table:
    version = "" if turn.version is None else f" · version {turn.version}"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=9)
    grid.add_column(ratio=1)
    grid.add_row("", Text.assemble((visible(recording.players[turn.player]), "bold"), version))
    thought, said = split_reply(turn.reply)
    did = Text(visible(turn.action))
    if turn.kind is not ReplyKind.LEGAL:
        did = Text.assemble((f"{turn.kind.value} reply; in its place: ", "red"), did)
    parts = earned(turn.rewards[turn.player]) or "nothing"
    parts += "" if advantage is None else f" · advantage {advantage:+.2f}"
    saw = turn.prompt if prompts else ""
    for name, text in (("saw", saw), ("thought", thought), ("said", said), ("did", did), ("earned", parts)):
        if text:
            grid.add_row(Text(f"  {name}", style="dim"), Text(visible(text)) if isinstance(text, str) else text)
    return grid
