"""Recorded games of any environment on the terminal."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.report.played import frames_of, game_words, outcome, returns
from hanabi_grpo.rollout.recordings import num_bad_replies
from hanabi_grpo.types import task_name


def games_table(recordings: Sequence[Recording], title: str) -> Table:
    """Return one line per game."""
    table = Table("game", "task", "returns", "ending", "turns", "bad replies", title=title)
    for column in (0, 4, 5):
        table.columns[column].justify = "right"
    for one in recordings:
        episode = one.episode
        task = visible(f"{task_name(episode.suite, episode.seed)} #{episode.game}")
        bad, turns = str(num_bad_replies(one) or ""), str(len(episode.turns))
        table.add_row(
            str(one.number), Text(task), returns(episode), Text(outcome(episode)), turns, bad
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
    """Print one game: the frame of each step, then what each player thought, said, did and earned.

    `settings` are those of its run, by variable. With `prompts` also what the players were shown;
    of `player` alone, or of all. Raises a SettingsError when it cannot be played again."""
    episode = recording.episode
    frames, words = (
        frames_of(recording, settings),
        game_words(recording, advantages, prompts=prompts),
    )
    head = (
        f"{episode.env} {words['preset']} · {words['task']}, game {episode.game} of its group "
        f"· {words['source']}"
    )
    told = Text(visible(f"{head}\n{words['outcome']}\nreturns: {words['shown']}"))
    console.print(Panel(told, title=f"game {recording.number}", title_align="left"))
    for place, (_, turns) in enumerate(
        groupby(enumerate(episode.turns), lambda item: item[1].step)
    ):
        shown = [words["moves"][number] for number, turn in turns if player in (None, turn.player)]
        if shown and place < len(frames):
            console.print(Text(f"{frames[place].title}\n{frames[place].text}"))
        for move in shown:
            console.print(_turn(move))
    if len(frames) > 1:
        console.print(Text(f"{frames[-1].title}\n{frames[-1].text}\n"))


def _turn(move: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=9)
    grid.add_column(ratio=1)
    grid.add_row("", Text(move["player"], style="bold"))
    did = Text.assemble(
        (f"{move['bad']} reply; in its place: ", "red") if move["bad"] else "", move["did"]
    )
    earned = move["facts"] or "nothing"
    for name, text in (("saw", move["prompt"]), ("thought", move["thought"]), ("said", move["said"]), ("did", did),
                       ("earned", earned)):  # fmt: skip
        if text:
            grid.add_row(
                Text(f"  {name}", style="dim"), Text(text) if isinstance(text, str) else text
            )
    return grid
