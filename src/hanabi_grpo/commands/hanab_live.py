"""`hanabi-grpo hanab-live export` and `import`: games of the board `full` there and back."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import sayer, stderr_console
from hanabi_grpo.envs.hanabi.replays.hanab_live import export_game, import_games
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.page import save_text
from hanabi_grpo.runs.recordings import Selection, read_recordings, recording_files, write_recordings
from hanabi_grpo.tracking.checkpoints import games_place

hanab_live = typer.Typer(no_args_is_help=True, help="Exchange games of the board full with hanab.live.")


@hanab_live.command("export")
def export_hanab_live(
    path: Annotated[Path, typer.Argument(help="Run folder, folder of games, or a *.jsonl file of games.")],
    out: Annotated[Path | None, typer.Option(help="New file, one game a line; the terminal when left out.")] = None,
    game: Annotated[int | None, typer.Option(help="Only the game of this number.")] = None,
    step: Annotated[int | None, typer.Option(help="Recorded step of a run; the last when left out.")] = None,
) -> None:
    """Write games of the board full as hanab.live reads them."""
    say = sayer(stderr_console())
    recordings, notes = read_recordings(recording_files(games_place(path), step))
    exported = [export_game(recording) for recording in Selection(game=game).apply(recordings)]
    for note in [*notes, *(note for _, said in exported for note in said)]:
        say(note)
    text = "".join(f"{json.dumps(live, ensure_ascii=False)}\n" for live, _ in exported)
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise SettingsError(f"--out {out}: exists already; choose another name or remove it.")
    save_text(out, text, "--out")
    say(f"wrote {len(exported)} games to {out}")


@hanab_live.command("import")
def import_hanab_live(
    sources: Annotated[list[Path], typer.Argument(help="JSON files.")],
    out: Annotated[Path, typer.Option(help="New file of games, for hanabi-grpo view.")],
) -> None:
    """Replay games of hanab.live in our engine; games of other rules are refused, and then none is written."""
    say, recordings = sayer(stderr_console()), []
    for source in sources:
        try:
            text = source.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingsError(f"{source}: cannot be read ({why}); give a JSON file.") from error
        for recording, notes in import_games(text, str(source)):
            recordings.append(recording)
            for note in notes:
                say(note)
    write_recordings(out, recordings)
    say(f"wrote {len(recordings)} games to {out}; watch with: hanabi-grpo view {out}")
