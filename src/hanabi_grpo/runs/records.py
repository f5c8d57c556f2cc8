"""Every game of a recorded step, as JSON lines."""

from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.runs.run_folder import append_jsonl
from hanabi_grpo.runs.wire import episode_to_json
from hanabi_grpo.types import Episode


def write_episodes(run_folder: Path, step: int, groups: Sequence[Sequence[Episode]]) -> Path:
    """Write `episodes/step_<step>.jsonl`: per game its deal, players, turns, rewards and adapter versions."""
    folder = run_folder / "episodes"
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:06d}.jsonl"
    path.unlink(missing_ok=True)
    append_jsonl(path, *(episode_to_json(episode) for group in groups for episode in group))
    return path
