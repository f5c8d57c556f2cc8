"""`hanabi-grpo hanab-live export` and `import`: games of the board `full` there and back."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hanabi_grpo.commands.view import choose_recordings
from hanabi_grpo.envs.hanabi.replays.hanab_live import export_game, import_game
from hanabi_grpo.envs.hanabi.replays.live_game import LiveGame, live_game_to_json, live_games_from_text
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import write_recordings
from hanabi_grpo.runs.run_folder import sync_folder

hanab_live = typer.Typer(no_args_is_help=True, help="Exchange games of the board full with hanab.live.")


@hanab_live.command("export")
def export_hanab_live(
    path: Annotated[Path, typer.Argument(help="Run folder, folder of games, or a *.jsonl file of games.")],
    out: Annotated[Path | None, typer.Option(help="New file, one game a line; the terminal when left out.")] = None,
    game: Annotated[int | None, typer.Option(help="Only the game of this number.")] = None,
    step: Annotated[int | None, typer.Option(help="Recorded step of a run; the last when left out.")] = None,
) -> None:
    """Write games of the board full as hanab.live reads them."""
    recordings, notes = choose_recordings(path, step=step, game=game)
    lines = []
    for recording in recordings:
        live, said = export_game(recording)
        notes += said
        lines.append(json.dumps(live_game_to_json(live), ensure_ascii=False))
    text = "".join(f"{line}\n" for line in lines)
    _tell(notes)
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
        sync_folder(out.parent)
    except FileExistsError as error:
        raise SettingsError(f"--out {out}: exists already; choose another name or remove it.") from error
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}).") from error
    _tell([f"wrote {len(lines)} game{'s' * (len(lines) != 1)} to {out}"])


@hanab_live.command("import")
def import_hanab_live(
    sources: Annotated[list[str], typer.Argument(help="JSON files, - for standard input.")],
    out: Annotated[Path, typer.Option(help="New file of games, for hanabi-grpo view.")],
) -> None:
    """Replay games of hanab.live in our engine; games of other rules are refused, and then none is written."""
    recordings: list[Recording] = []
    for source in sources:
        lives = _read(source)
        for number, live in enumerate(lives):
            name = "standard input" if source == "-" else source
            recording, notes = import_game(live, name if len(lives) == 1 else f"{name}, game {number}")
            recordings.append(recording)
            _tell(notes)
    write_recordings(out, recordings)
    word = "game" if len(recordings) == 1 else "games"
    _tell([f"wrote {len(recordings)} {word} to {out}; watch with: hanabi-grpo view {out}"])


def _read(source: str) -> list[LiveGame]:
    if source == "-":
        return live_games_from_text(sys.stdin.read(), "standard input")
    try:
        text = Path(source).read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(f"{source[:80]}: cannot be read ({why}); give a JSON file of games.") from error
    return live_games_from_text(text, source)


def _tell(notes: Sequence[str]) -> None:
    # To stderr: standard output may be the game itself.
    console = Console(stderr=True, highlight=False, emoji=False)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
