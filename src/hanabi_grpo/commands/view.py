"""`hanabi-grpo view`: recorded games on the terminal, or as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.games import advantages_of, games_page, settings_beside
from hanabi_grpo.report.games_screen import games_table, print_game
from hanabi_grpo.report.page import write_page
from hanabi_grpo.rollout.recordings import Selection, read_recordings, recording_files
from hanabi_grpo.texts import visible_line
from hanabi_grpo.tracking.checkpoints import games_place
from hanabi_grpo.types import MAX_PLAYERS, player_names

PLAYERS = player_names(MAX_PLAYERS)


def view(
    path: Annotated[
        Path,
        typer.Argument(
            help="Run folder, folder of games, *.jsonl file of games, or "
            "wandb:team/project/name:alias."
        ),
    ],
    worst: Annotated[
        int | None, typer.Option(help="Show this many games with the lowest return.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(help="Show this many games with the highest return.")
    ] = None,
    illegal: Annotated[
        bool, typer.Option("--illegal", help="Show only games with an illegal or unreadable reply.")
    ] = False,
    player: Annotated[
        str | None, typer.Option(help="Show only turns of this player, e.g. player_1.")
    ] = None,
    game: Annotated[int | None, typer.Option(help="Show only the game with this number.")] = None,
    step: Annotated[
        int | None, typer.Option(help="Recorded step of a run.", show_default="the last one")
    ] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Also show the prompts of the players.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page instead.")] = None,
) -> None:
    """Watch recorded games of any environment.

    Shows what each player saw, thought, said and did, and the reward.

    Environment: WANDB_MODE, WANDB_ENTITY and OUTPUT_DIR apply to wandb: sources.
    """
    if player not in (None, *PLAYERS):
        raise SettingsError(f"--player {player!r}: must be one of {', '.join(PLAYERS)}.")
    if player is not None and html is not None and not illegal:
        raise SettingsError(
            f"--player {player} with --html: a page shows the turns of every player; omit "
            "--player, or add --illegal, which selects games by that player's replies."
        )
    selection = Selection(
        worst=worst,
        best=best,
        illegal=illegal,
        player=None if player is None else PLAYERS.index(player),
        game=game,
    )
    console = make_console()
    say = sayer(console)
    path = games_place(path)
    files = recording_files(path, step)
    recordings, notes = read_recordings(files)
    for note in notes:
        say(note, "yellow")
    settings = settings_beside(path)
    chosen = selection.apply(recordings)
    title = f"{_source_of(files)}: {len(chosen)} of {len(recordings)} games"
    if not chosen:
        say(f"{title}; every reply was a legal action.")
        return
    if html is not None:
        page = games_page(recordings, chosen, title=title, settings=settings, prompts=prompts)
        say(write_page(html, page, "--html"))
        return
    if selection.is_everything and len(chosen) > 1:
        console.print(games_table(chosen, title))
        say(
            "Show one game: --game N. Show several: --worst N, --best N, --illegal. Write all to a "
            "page: --html FILE"
        )
        return
    advantages, _ = advantages_of(recordings, settings)
    for recording in chosen:
        print_game(
            console,
            recording,
            settings,
            advantages[recording.number],
            prompts=prompts,
            player=selection.player,
        )


def _source_of(files: list[Path]) -> str:
    """Name the files and their run, e.g. "step_000100.jsonl of laptop-20260131-093000".

    A page may be shared, and full paths name machines and people.
    """
    folder = files[0].resolve().parent
    run = folder.parent.name if folder.name == "episodes" else folder.name
    name = files[0].name if len(files) == 1 else f"{len(files)} files"
    return visible_line(f"{name} of {run}")
