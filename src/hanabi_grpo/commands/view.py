"""`hanabi-grpo view`: recorded games on the terminal, or as one HTML page."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.commands.console import make_console
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.selection import Selection
from hanabi_grpo.envs.hanabi.replays.terminal import games_table, print_game
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.replays.page import render_page
from hanabi_grpo.runs.manifest import MANIFEST
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking.checkpoints import games_place
from hanabi_grpo.training.advantages import ESTIMATORS, Estimator, choose_estimator
from hanabi_grpo.training.advantages.recorded import turn_advantages
from hanabi_grpo.types import MAX_PLAYERS, player_names

_LARGE_PAGE = 4_000_000
"""Bytes above which a page opens slowly on a phone."""


def view(
    path: Path,
    *,
    worst: int | None,
    best: int | None,
    illegal: bool,
    player: str | None,
    game: int | None,
    step: int | None,
    prompts: bool,
    hands: bool,
    html: Path | None,
) -> None:
    """Show games of a run folder or a file.

    Args:
        path: Run folder, folder of games, file of games, or a word such as wandb:team/project/name:best.
        worst: This many games of the lowest score.
        best: This many games of the highest score.
        illegal: Only games with a reply that was illegal or no move.
        player: Only turns of this player, e.g. "player_1".
        game: Only the game of this number.
        step: Which recorded step of a run folder; None: the last.
        prompts: Also what the players were shown.
        hands: Also the cards that the mover could not see.
        html: Page to write, instead of printing.

    Raises:
        SettingsError: Nothing to show, or a record that does not fit its deal.
    """
    selection = Selection(worst=worst, best=best, illegal=illegal, player=read_player(player), game=game)
    console = make_console()
    path, step = games_place(path, step)
    files = recording_files(path, step)
    recordings, notes = read_recordings(files)
    for note in notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    estimator = _estimator(path)
    advantages = dict(enumerate(turn_advantages(recordings, estimator)))
    chosen = selection.apply(recordings)
    title = f"{_name(files)}: {len(chosen)} of {len(recordings)} games"
    if not chosen:
        console.print(f"{title}; every reply was a legal move.", markup=False, soft_wrap=True)
        return
    if html is None and selection.is_everything and len(chosen) > 1:
        console.print(games_table(chosen, title))
        console.print("One of them: --game N. Several: --worst N, --best N, --illegal. All as a page: --html FILE")
        return
    timelines = [make_timeline(one, advantages[one.number]) for one in chosen]
    if html is not None:
        _write_page(html, timelines, title=title, prompts=prompts, estimator=_described(estimator))
        size = html.stat().st_size
        console.print(f"wrote {html} ({size / 1000:.0f} kB); open it in a browser.", markup=False, soft_wrap=True)
        if size > _LARGE_PAGE:
            console.print("That is large for a browser; --worst N or --game N make a smaller page.")
        return
    for timeline in timelines:
        print_game(console, timeline, prompts=prompts, hands=hands, player=selection.player)


def read_player(name: str | None) -> int | None:
    """Return the seat of a player's name.

    Raises:
        SettingsError: No such name.
    """
    if name is None:
        return None
    names = player_names(MAX_PLAYERS)
    match = re.fullmatch(rf"(?:player_)?([0-{MAX_PLAYERS - 1}])", name, re.ASCII)
    if match is None:
        raise SettingsError(f"--player {name!r}: a player is one of {', '.join(names)}.")
    return int(match[1])


def choose_recordings(path: Path, *, step: int | None, game: int | None) -> tuple[list[Recording], list[str]]:
    """Return the games of a path, or the one of a number, and notes about the files.

    Raises:
        SettingsError: See `recording_files`, `read_recordings` and `Selection`.
    """
    recordings, notes = read_recordings(recording_files(*games_place(path, step)))
    return Selection(game=game).apply(recordings), notes


def _name(files: Sequence[Path]) -> str:
    # A page is passed on, and whole paths name machines and people.
    folder = files[0].resolve().parent
    run = folder.parent.name if folder.name == "episodes" else folder.name
    return f"{files[0].name} of {run}" if len(files) == 1 else f"{len(files)} files of {run}"


def _estimator(path: Path) -> Estimator:
    """Return the estimator that the run trained with; the default one where there is no run.

    A run and an artifact of it have `settings.json`, an exported folder has settings in its manifest. Whitening and the
    weights of the loss come after it, and a moving baseline is not known here: the step's own mean stands for it.
    """
    for folder in (path, path.resolve().parent.parent):
        for file in (folder / "settings.json", folder / MANIFEST):
            if not file.is_file():
                continue
            try:
                data = json.loads(file.read_text(encoding="utf-8"))
                if file.name == MANIFEST and "settings" not in data:
                    continue
                name, scale = data["settings"]["HANABI_ADVANTAGE"], data["settings"].get("HANABI_ADVANTAGE_SCALE")
            except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                raise SettingsError(f"{file}: not the settings of a run ({error!r}).") from error
            if name not in ESTIMATORS:
                raise SettingsError(f"{file}: HANABI_ADVANTAGE={name!r}; known: {', '.join(ESTIMATORS)}.")
            if scale not in (None, "std", "none"):
                raise SettingsError(f"{file}: HANABI_ADVANTAGE_SCALE={scale!r}; known: std, none.")
            return choose_estimator(name, scale)
    return choose_estimator(Settings().advantage)


def _described(estimator: Estimator) -> str:
    games = "the games of a deal" if estimator.pool == "group" else "all games of the step"
    return f"{estimator.name}, among {games}"


def _write_page(path: Path, timelines: Sequence[Timeline], *, title: str, prompts: bool, estimator: str) -> None:
    page = render_page(timelines, title=title, prompts=prompts, estimator=estimator)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, page)
    except OSError as error:
        raise SettingsError(f"--html {path}: cannot be written ({error.strerror}).") from error
