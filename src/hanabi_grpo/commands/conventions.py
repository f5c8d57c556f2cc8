"""`hanabi-grpo conventions`: what the moves of line-ups mean to each other, as one page."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hanabi_grpo.commands.console import make_console, print_json
from hanabi_grpo.commands.interruption import interruptible
from hanabi_grpo.commands.playing import chosen_temperature, game_config, progress_bar, serving, stderr_console
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.conventions import ConventionCounts, convention_json, convention_report
from hanabi_grpo.envs.hanabi.replays.timeline import replayed_game
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import default_label, line_up_key
from hanabi_grpo.evaluation.matches import Served, play_line_up
from hanabi_grpo.report.conventions.page import render_conventions
from hanabi_grpo.rollout.lineups import LineUp, parse_line_up
from hanabi_grpo.runs.ledger import Ledger, key_digest
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.runs.run_folder import write_json_atomic, write_text_atomic
from hanabi_grpo.settings import load_settings

_FOLDER = Path("outputs")
_KEEP_EVERY = 500
"""Deals between two states of the counts on disk."""


def conventions(
    line_ups: Sequence[str],
    *,
    games: Sequence[Path],
    deals: int,
    suite: str,
    preset: str | None,
    players: int | None,
    temperature: float | None,
    out: Path | None,
    as_json: bool,
    own: bool,
) -> None:
    """Count over the games of line-ups, and of recorded games, and write the page.

    Args:
        line_ups: Who plays, see `lineups`, each in the seats that it names.
        games: Run folders, folders or files of recorded games, each a section of its own.
        deals: Number of deals that each line-up plays.
        suite: Which stream of deals.
        preset: Board; None: the one of HANABI_PRESET or DATASET.
        players: Players; None: likewise.
        temperature: Of sampling, 0 for greedy; None: TEMPERATURE.
        out: The page; its figures go beside it as JSON.
        as_json: The figures on standard output too.
        own: Start a rollout server for this command alone.

    Raises:
        SettingsError: Nothing to look at, bad options, or games of several boards in one place.
        ServerError: No server, or one that does not fit.
        typer.Exit: With code 130 when it was interrupted.
    """
    if not line_ups and not games:
        raise SettingsError(
            "hanabi-grpo conventions: name line-ups (iggi served …) or, by --games PATH, recorded games."
        )
    if deals < 1:
        raise SettingsError(f"--deals {deals}: must be 1 or more.")
    loaded = load_settings()
    heat = chosen_temperature(loaded.settings, temperature)
    aside = stderr_console()
    counted = [_recorded(path) for path in games]
    standing: dict[str, int] = {}
    books: list[Path] = []
    if line_ups:
        config = game_config(loaded.settings, preset, players)
        teams = [parse_line_up(text, config.players) for text in line_ups]
        with (
            interruptible(lambda: f"stopped: {_standing(standing, deals)}; the same command goes on from there."),
            ExitStack() as stack,
        ):
            served = None
            if any(team.needs_server for team in teams):
                _, served = stack.enter_context(serving(loaded, config, heat, aside, own=own))
            for team in teams:
                label = default_label(team)
                with progress_bar(aside, f"{label}: {deals} deals", deals) as show:
                    counts, book = _played(team, config, deals, suite, served, show, standing)
                counted.append((label, counts))
                books.append(book)
    page = out or _FOLDER / f"conventions-{counted[-1][1].spec.preset}.html"
    found = [convention_report(label, counts) for label, counts in counted]
    figures = {"line_ups": [convention_json(report) for report in found]}
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(page, render_conventions(found, title=_title(line_ups, games, deals, suite)))
        write_json_atomic(page.with_suffix(".json"), figures)
    except OSError as error:
        raise SettingsError(f"--out {page}: cannot be written ({error.strerror}).") from error
    for book in books:
        book.unlink(missing_ok=True)
    if as_json:
        print_json(figures)
    console = aside if as_json else make_console()
    console.print(f"wrote {page} and {page.with_suffix('.json').name}", markup=False, soft_wrap=True)


def _played(
    team: LineUp,
    config: EnvConfig,
    deals: int,
    suite: str,
    served: Served | None,
    progress: Callable[[int], None],
    standing: dict[str, int],
) -> tuple[ConventionCounts, Path]:
    """Return the counts over one line-up's games, and the file that keeps them until the page is written."""
    key = {**line_up_key(team, config, suite=suite, served=served, rotate=False), "figures": "conventions"}
    path = _FOLDER / "conventions" / f"{config.preset}-{key_digest(key)}.part.jsonl"
    with Ledger(path, key) as book:
        counts, done = _newest(book, config, deals)
        saved = standing[default_label(team)] = done
        progress(done)
        for chunk in play_line_up(team, config, range(done, deals), suite=suite, served=served, rotate=False):
            for game in chunk:
                counts.add(game.game)
            done += len(chunk)
            if done - saved >= _KEEP_EVERY or team.needs_server or done == deals:
                book.add({"deals": done, "counts": counts.to_json()})
                saved = standing[default_label(team)] = done
            progress(done)
    return counts, path


def _newest(book: Ledger, config: EnvConfig, deals: int) -> tuple[ConventionCounts, int]:
    # A state of more deals than are asked for now cannot be taken back.
    rows = [row for row in book.rows if isinstance(row.get("deals"), int) and row["deals"] <= deals]
    if not rows:
        return ConventionCounts(config.spec()), 0
    return ConventionCounts.from_json(rows[-1]["counts"]), rows[-1]["deals"]


def _recorded(path: Path) -> tuple[str, ConventionCounts]:
    recordings, notes = read_recordings(recording_files(path))
    for note in notes:
        stderr_console().print(note, style="yellow", markup=False, soft_wrap=True)
    counts: ConventionCounts | None = None
    for game in map(replayed_game, recordings):
        counts = counts or ConventionCounts(game.spec)
        if game.spec.hash != counts.spec.hash:
            raise SettingsError(
                f"--games {path}: holds games of several boards ({counts.spec.preset} with {counts.spec.num_players} "
                f"players, {game.spec.preset} with {game.spec.num_players}); give files of one."
            )
        counts.add(game)
    assert counts is not None  # `read_recordings` refuses files without a game
    return "/".join(path.resolve().parts[-2:]), counts


def _title(line_ups: Sequence[str], games: Sequence[Path], deals: int, suite: str) -> str:
    played = f"{deals} deals of suite {suite} for each line-up" if line_ups else ""
    return "; ".join(filter(None, (played, "recorded games" if games else "")))


def _standing(standing: dict[str, int], deals: int) -> str:
    return "; ".join(f"{label}: {done} of {deals} deals are counted and kept" for label, done in standing.items())
