"""The sample games that travel with adapters: `episodes/step_N.jsonl` of an artifact or an exported folder.

They are whole tasks, those of the games on the replay page, so that `hanabi-grpo view` compares a game with the same
others as in training. Token ids and logprobs are left out: nobody trains on these files.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import read_recordings, recorded_steps, recording_to_json
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.runs.selection import NUM_REPLAYS, spread

logger = logging.getLogger(__name__)

MOST_BYTES = 4_000_000
"""Of the file; tasks, or at least games, that would not fit are left out."""
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
    """Return the lines of whole tasks while they fit; of single games where no task does."""
    shown = spread(recordings, NUM_REPLAYS)
    tasks = {_task(one): [other for other in recordings if _task(other) == _task(one)] for one in shown}
    return _first_that_fit(tasks.values()) or _first_that_fit([one] for one in shown)


def _first_that_fit(groups: Iterable[Sequence[Recording]]) -> list[str]:
    kept: dict[int, str] = {}
    left = MOST_BYTES
    for group in groups:
        lines = {one.number: _line(one) for one in group}
        size = sum(len(line.encode()) for line in lines.values())
        if size <= left:
            kept |= lines
            left -= size
    return [kept[number] for number in sorted(kept)]


def _task(recording: Recording) -> tuple[str, str, int]:
    episode = recording.episode
    return episode.spec_hash, episode.suite, episode.seed


def _line(recording: Recording) -> str:
    turns = tuple(replace(turn, prompt_ids=(), reply_ids=(), logprobs=()) for turn in recording.episode.turns)
    slim = replace(recording, episode=replace(recording.episode, turns=turns))
    return json.dumps(recording_to_json(slim), ensure_ascii=False, allow_nan=False) + "\n"
