"""What W&B shows beside curves: sample games as a table and as a replay page.

This module is handed to `tracking.publisher`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.games import sample_page
from hanabi_grpo.report.played import outcome, returns
from hanabi_grpo.runs.recordings import NUM_REPLAYS, num_bad_replies, read_recordings, recording_files
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.types import deal_name

COLUMNS = ("file", "task", "game", "returns", "result", "turns", "bad replies", "moves")
NUM_GAMES = 12
"""Games of the table: the best, the worst and those of the scores between them."""


def sample_recordings(run_folder: Path) -> list[Recording]:
    """Return all games of the newest recorded step; none where no step was recorded."""
    try:
        return read_recordings(recording_files(run_folder))[0] if (run_folder / "episodes").is_dir() else []
    except SettingsError:
        # The file may be half-written just now; the next look finds it whole.
        return []


def table_rows(recordings: Sequence[Recording]) -> list[list[Any]]:
    """Return the cells of the table, one row a game, in the order of COLUMNS."""
    rows: list[list[Any]] = []
    for one in recordings:
        episode = one.episode
        task, turns = visible(deal_name(episode.suite, episode.seed)), episode.turns
        moves = visible(" · ".join(f"{one.players[turn.player]} {turn.action}" for turn in turns))
        told = [returns(episode), outcome(episode), len(turns), num_bad_replies(one), moves]
        rows.append([one.source, task, episode.game, *told])
    return rows


def replay_page(recordings: Sequence[Recording], settings: Settings, title: str) -> str:
    """Return a few of the games of a step as one page; raises a SettingsError where a record does not fit its deal."""
    return sample_page(recordings, NUM_REPLAYS, title=title, settings=settings_values(settings))
