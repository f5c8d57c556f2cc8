"""`hanabi-grpo scores`: our bots beside the figures of others."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from hanabi_grpo import games, policies
from hanabi_grpo.commands.console import make_console
from hanabi_grpo.commands.interruption import interruptible
from hanabi_grpo.commands.playing import progress_bar, stderr_console
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.games import make_spec
from hanabi_grpo.policies import make_policy, play_scripted
from hanabi_grpo.published_scores import PUBLISHED_SCORES, PublishedScore
from hanabi_grpo.runs import write_json_atomic

SUITES = ("eval", "collect-scores")
"""Half of the games each: on small boards one half of all decks is held out, and the figures of others are over all."""
COLUMNS = ("bot", "board", "ours ± SE", "theirs", "difference", "in SE", "their figure")
_KEPT = Path("outputs")


def scores(*, deals: int, out: Path | None, as_json: bool) -> None:
    """Let every bot play, and print the table.

    Finished rows are kept in `outputs/scores-<deals>/` until all are, so an interrupted command goes on.

    Args:
        deals: Games of each row.
        out: Markdown file with the table between its markers; the rest of it stays.
        as_json: Rows as JSON on standard output instead of the table.

    Raises:
        SettingsError: Too few deals, or a file that cannot be written.
        typer.Exit: With code 1 when a row is four or more standard errors off, with 130 when interrupted.
    """
    if deals < 1000 or deals % 2:
        raise SettingsError(
            f"--deals {deals}: give an even number, at least 1000; half are played on each half of decks."
        )
    kept = _KEPT / f"scores-{deals}"
    console = stderr_console() if as_json else make_console()
    with interruptible(lambda: _standing(kept)):
        rows = _play_all(deals, kept, console)
    shutil.rmtree(kept)
    cells = [row_cells(one, row) for one, row in zip(PUBLISHED_SCORES, rows, strict=True)]
    if as_json:
        sys.stdout.write(
            json.dumps([{**one._asdict(), **row} for one, row in zip(PUBLISHED_SCORES, rows, strict=True)])
        )
        sys.stdout.write("\n")
    else:
        console.print(_table(cells, deals))
    if out is not None:
        _write(out, cells, deals)
        console.print(f"wrote {out}", markup=False, soft_wrap=True)
    if any(abs(difference(one, row)[1]) >= 4 for one, row in zip(PUBLISHED_SCORES, rows, strict=True)):
        console.print("A bot is four or more standard errors off the figure of others.", style="red")
        raise typer.Exit(1)


def difference(one: PublishedScore, row: dict[str, Any]) -> tuple[float, float]:
    """Return ours minus theirs in points, and in joint standard errors (ours alone where theirs is unknown)."""
    gap = row["mean"] - one.mean
    return gap, gap / (row["standard_error"] ** 2 + (one.standard_error or 0.0) ** 2) ** 0.5


def row_cells(one: PublishedScore, row: dict[str, Any]) -> tuple[str, ...]:
    """Return one line of the table."""
    gap, sigmas = difference(one, row)
    theirs = f"{one.mean:.3f}" if one.standard_error else f"{one.mean:.2f}"
    return (
        one.bot,
        one.board,
        f"{row['mean']:.3f} ± {row['standard_error']:.3f}",
        theirs + (f" ± {one.standard_error:.3f}" if one.standard_error else ""),
        f"{gap:+.3f}",
        f"{sigmas:+.1f}",
        one.source,
    )


def play_row(one: PublishedScore, deals: int) -> tuple[PublishedScore, dict[str, Any]]:
    """Return a row's name, and mean and standard error of the bot's games, half of them on each half of the decks."""
    spec = make_spec(one.preset, one.num_players)
    table = [make_policy(one.bot)] * one.num_players
    found = [play_scripted(spec, table, suite=suite, seed=seed).score for suite in SUITES for seed in range(deals // 2)]
    error = stdev(found) / deals**0.5
    return one, {"games": deals, "mean": fmean(found), "standard_error": error, "spec_hash": spec.hash}


def _standing(kept: Path) -> str:
    done = sum(_path(kept, one).exists() for one in PUBLISHED_SCORES)
    return f"{done} of {len(PUBLISHED_SCORES)} rows are kept in {kept}; the same command goes on."


def _play_all(deals: int, kept: Path, console: Console) -> list[dict[str, Any]]:
    kept.mkdir(parents=True, exist_ok=True)
    code = _code()
    found = {one: row for one in PUBLISHED_SCORES if (row := _read(kept, one, code)) is not None}
    missing = [one for one in PUBLISHED_SCORES if one not in found]
    # The slowest first, so that no process plays alone at the end.
    missing.sort(key=lambda one: (-make_spec(one.preset, one.num_players).deck_size, -one.num_players))
    with (
        multiprocessing.get_context("spawn").Pool(os.cpu_count(), _leave_ctrl_c_to_us) as pool,
        progress_bar(console, f"rows of {deals} games", len(PUBLISHED_SCORES)) as show,
    ):
        show(len(found))
        for one, row in pool.imap_unordered(partial(play_row, deals=deals), missing):
            found[one] = row
            write_json_atomic(_path(kept, one), {**row, "code": code})
            show(len(found))
    return [found[one] for one in PUBLISHED_SCORES]


def _leave_ctrl_c_to_us() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _path(kept: Path, one: PublishedScore) -> Path:
    return kept / f"{one.bot}-{one.preset}-{one.num_players}.json"


def _read(kept: Path, one: PublishedScore, code: str) -> dict[str, Any] | None:
    try:
        row = json.loads(_path(kept, one).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) and row.get("code") == code else None


def _code() -> str:
    """Return a digest of the bots and the game: rows that were kept by another version are played again."""
    digest = hashlib.sha256()
    for room in (policies, games):
        for path in sorted(Path(str(room.__file__)).parent.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _table(cells: Sequence[Sequence[str]], deals: int) -> Table:
    table = Table(title=f"{deals} games each, half of them on held-out decks", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("bot", "board", "their figure") else "right")
    for row in cells:
        table.add_row(*row)
    return table


def _write(out: Path, cells: Sequence[Sequence[str]], deals: int) -> None:
    begin, end = "<!-- scores:begin -->", "<!-- scores:end -->"
    lines = [f"{deals} games each, half of them on held-out decks:", "", "| " + " | ".join(COLUMNS) + " |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | --- |", *("| " + " | ".join(row) + " |" for row in cells)]
    block = "\n".join([begin, *lines, end])
    try:
        text = out.read_text(encoding="utf-8") if out.exists() else f"{block}\n"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise SettingsError(
                f"--out {out}: needs one line {begin} and after it one line {end}; the table goes there."
            )
        out.write_text(text[: text.index(begin)] + block + text[text.index(end) + len(end) :], encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}).") from error
