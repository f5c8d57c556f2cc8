"""The sample games that travel with adapters: `episodes/step_N.jsonl` of an artifact or an exported folder.

They are whole deals, those of the games on the replay page, so that `hanabi-grpo view` compares a game with the same
others as in training. Token ids and logprobs are left out: nobody trains on these files.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.selection import NUM_REPLAYS, spread
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import read_recordings, recorded_steps, recording_to_json
from hanabi_grpo.runs.run_folder import write_text_atomic

logger = logging.getLogger(__name__)

MOST_BYTES = 4_000_000
"""Of the file; deals, or at least games, that would not fit are left out."""
_EPISODES = "episodes"


def write_sample_games(source: Path, target: Path, step: int) -> Path | None:
    """Write games of the last step that was recorded up to a checkpoint's.

    Args:
        source: Run folder, or a folder that holds sample games already.
        target: Folder to write `episodes/` into.
        step: Of the checkpoint.

    Returns:
        The file; None where no step up to the checkpoint's was recorded, or its file cannot be read.

    Raises:
        OSError: It cannot be written.
    """
    try:
        recordings = _recorded(source, step)
    except SettingsError as error:
        logger.warning("no sample games: %s", error)
        return None
    lines = _fitting(recordings)
    if not lines:
        return None
    path = target / _EPISODES / f"{recordings[0].source}.jsonl"
    path.parent.mkdir(parents=True)
    write_text_atomic(path, "".join(lines))
    return path


def _recorded(source: Path, step: int) -> list[Recording]:
    files = recorded_steps(source)
    last = max((one for one in files if one <= step), default=None)
    return [] if last is None else read_recordings([files[last]])[0]


def _fitting(recordings: Sequence[Recording]) -> list[str]:
    """Return the lines of whole deals while they fit; of single games where no deal does."""
    shown = spread(recordings, NUM_REPLAYS)
    lines = {one.number: _line(one) for one in recordings}
    deals = [[one.number for one in recordings if _deal(one) == deal] for deal in dict.fromkeys(map(_deal, shown))]
    numbers = _first_that_fit(deals, lines) or _first_that_fit([[one.number] for one in shown], lines)
    return [lines[number] for number in sorted(numbers)]


def _first_that_fit(groups: Sequence[Sequence[int]], lines: Mapping[int, str]) -> list[int]:
    kept: list[int] = []
    left = MOST_BYTES
    for group in groups:
        size = sum(len(lines[number].encode()) for number in group)
        if size <= left:
            kept += group
            left -= size
    return kept


def _deal(recording: Recording) -> tuple[str, str, int]:
    episode = recording.episode
    return episode.spec_hash, episode.suite, episode.seed


def _line(recording: Recording) -> str:
    turns = tuple(replace(turn, prompt_ids=(), reply_ids=(), logprobs=()) for turn in recording.episode.turns)
    slim = replace(recording, episode=replace(recording.episode, turns=turns))
    return json.dumps(recording_to_json(slim), ensure_ascii=False, allow_nan=False) + "\n"
