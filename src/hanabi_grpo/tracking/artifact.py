"""The folder that is uploaded as an artifact: `artifacts/step_N` of the run folder.

It contains every adapter of `checkpoint-N` with its manifest, the card, the settings, the score of
the training games, the evaluations in the run folder and some recorded games. `hanabi-grpo
evaluate` and `view` accept such a folder directly. Its adapters are hard links, so it takes almost
no space while the checkpoint exists, and it remains when the checkpoint is rotated out.

With UPLOAD_CKPT_TO_WANDB=full, it also contains the trainer's state and the run's records, from
which `runs.restored_run` restores a run folder on another machine.

The games are complete groups, those of the replay page, so that `hanabi-grpo view` compares a game
with the same others as in training. Token ids and logprobs are left out, because these files are
not used for training.
"""

import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.files import write_text_atomic
from hanabi_grpo.rollout.recordings import (
    NUM_REPLAYS,
    read_recordings,
    recorded_steps,
    recording_to_json,
    spread,
)
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.manifest import MANIFEST, Manifest, check_checkpoint, spec_hashes
from hanabi_grpo.runs.restored_run import RUN_FILES, TRAINER_STATE, run_files
from hanabi_grpo.runs.run_folder import json_text, new_folder, plain_name, write_json_atomic
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.settings.base_models import base_models, bases_by_player
from hanabi_grpo.settings.defaults import is_local_model
from hanabi_grpo.tracking.record import RunningScore

logger = logging.getLogger(__name__)

FOLDER = "artifacts"
"""Folder of all artifacts in the run folder."""
CARD = "README.md"
SCORE = "training_score.json"
SETTINGS = "settings.json"
EVALUATIONS = "evaluation"
EPISODES = "episodes"

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""A model's name on the hub, e.g. "Qwen/Qwen3-0.6B"."""

_MAX_GAME_BYTES = 4_000_000
"""Size limit of the sample games; tasks that would exceed it are left out."""
_NAME_SUFFIX = "-adapters"
_MAX_NAME = 128
"""Most characters that W&B accepts in a name."""
_GIT_SECONDS = 10
"""Time limit of a git command."""
_CARD = """\
# Players of {env}

LoRA adapters for language models that play {env}, trained with GRPO by hanabi-grpo.

| | |
|---|---|
{rows}

The score is the mean of sampled training games, played by the policy versions of the last steps. It
is not an evaluation.

```bash
hanabi-grpo evaluate FOLDER --own-server     # FOLDER: this folder
```
"""


def build_artifact(
    run_folder: Path, checkpoint: Path, settings: Settings, score: RunningScore | None
) -> tuple[Path, dict[str, Any]]:
    """Build `artifacts/step_N` from a run's `checkpoint-N`, replacing an existing one.

    Every file of the checkpoint is checked against the manifest.

    Args:
        run_folder: The run.
        checkpoint: One of its checkpoints.
        settings: The run's settings.
        score: Score of the training games up to the checkpoint.

    Returns:
        The folder, and the artifact's metadata.

    Raises:
        RunFolderError: The checkpoint is damaged or missing, or the folder cannot be written.
    """
    manifest = check_checkpoint(checkpoint)
    evaluations = _by_file_name(find_evaluations(run_folder).paths)
    folder = run_folder / FOLDER / f"step_{manifest.step}"
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        # Left by a process that was killed.
        shutil.rmtree(leftover, ignore_errors=True)
    metadata = _metadata(settings, manifest, score)
    try:
        with new_folder(folder) as partial:
            _fill_artifact(
                partial,
                checkpoint,
                manifest,
                settings=settings,
                score=score,
                metadata=metadata,
                evaluations=evaluations,
                run_folder=run_folder,
            )
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written ({error.strerror}); {checkpoint} is unchanged."
        ) from error
    return folder, metadata


def _fill_artifact(
    folder: Path,
    checkpoint: Path,
    manifest: Manifest,
    *,
    settings: Settings,
    score: RunningScore | None,
    metadata: dict[str, Any],
    evaluations: Mapping[str, Path],
    run_folder: Path,
) -> None:
    """Write the content of an artifact into a new folder.

    Args:
        folder: The new folder.
        checkpoint: The checkpoint with the adapters.
        manifest: The checkpoint's manifest.
        settings: The run's settings.
        score: Score of the training games up to the checkpoint.
        metadata: The result of `_metadata`.
        evaluations: Evaluation files by their names in the artifact.
        run_folder: The run, which has the recorded games.
    """
    is_full = settings.upload_ckpt_to_wandb == "full"
    for name in (*manifest.files, MANIFEST):
        if is_full or not name.startswith(f"{TRAINER_STATE}/"):
            _link(checkpoint / name, folder / name)
    if is_full:
        (folder / RUN_FILES).mkdir()
        for path in run_files(run_folder):
            # Copied, because the run continues to write these.
            shutil.copy2(path, folder / RUN_FILES / path.name)
    write_json_atomic(folder / SETTINGS, {"settings": settings_values(settings)})
    if score is not None:
        write_json_atomic(
            folder / SCORE,
            {
                "of": "training games, sampled, of the last steps up to this checkpoint",
                "mean": score.mean,
                "standard_error": score.standard_error,
                "steps": score.num_steps,
            },
        )
    for name, path in evaluations.items():
        _link(path, folder / EVALUATIONS / name)
    games = write_sample_games(run_folder, folder, manifest.step)
    facts = {
        "base model": metadata["base_model"],
        "optimizer steps": manifest.step,
        "adapters": metadata["adapters"],
        "preset": (
            f"{settings.board or 'set by the dataset'} (rules {', '.join(metadata['spec_hashes'])})"
        ),
        "LoRA rank / alpha": f"{settings.lora_rank} / {settings.lora_alpha}",
        "score of the last training games": score.text if score else "unknown",
        "evaluations": ", ".join(evaluations) or "none in this folder",
        "sample games": games.name if games else "none in this folder",
    }
    rows = "\n".join(f"| {name} | {table_cell(value)} |" for name, value in facts.items())
    write_text_atomic(folder / CARD, _CARD.format(env=settings.env, rows=rows))


def _metadata(settings: Settings, manifest: Manifest, score: RunningScore | None) -> dict[str, Any]:
    facts = manifest.facts
    # In a team with several base models, this is player_0's; `base_models` has each player's own.
    names = {name: base_name(base)[0] for name, base in bases_by_player(settings).items()}
    model_name, _ = base_name(base_models(settings)[0])
    return {
        "step": manifest.step,
        "players": settings.players,
        "adapters": list(facts.get("adapters", [])),
        "base_model": model_name,
        **({"base_models": names} if names else {}),
        "base_fingerprint": facts.get("model_fingerprint"),
        "rank": settings.lora_rank,
        "alpha": settings.lora_alpha,
        "env": settings.env,
        "preset": settings.board,
        "spec_hashes": list(spec_hashes(facts)),
        "score": score.mean if score else None,
        "score_se": score.standard_error if score else None,
        "score_steps": score.num_steps if score else 0,
        "score_of": "training games, sampled",
        "commit": commit(),
    }


def artifact_name(settings: Settings, run_folder: Path) -> str:
    """Return CKPT_ARTIFACT_NAME, or a name derived from the run folder.

    Characters that W&B does not accept are replaced by dashes.
    """
    if settings.ckpt_artifact_name:
        return settings.ckpt_artifact_name
    name = plain_name(run_folder.resolve().name).strip("-.") or "run"
    return name[: _MAX_NAME - len(_NAME_SUFFIX)] + _NAME_SUFFIX


def _by_file_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return files by unique names in one folder: their own, with a number if it is taken.

    Example:
        "a.json" for run/a.json and "a.1.json" for run/evaluations/a.json
    """
    files: dict[str, Path] = {}
    for path in paths:
        name = path.name
        for number in itertools.count(1):
            if name not in files:
                break
            name = f"{path.stem}.{number}{path.suffix}"
        files[name] = path
    return files


def commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None outside a checkout.

    It ends in "+changes" if files differ from the commit.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty=+changes",
    ]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def base_name(model: str) -> tuple[str, bool]:
    """Return the base model's name for publishing.

    For a local model, this is the last part of its folder: full paths reveal the names of machines
    and people.

    Args:
        model: MODEL of the training run.

    Returns:
        The name, and whether it is the name of a model on the hub.
    """
    is_local = is_local_model(model) or Path(model).exists()
    if HUB_NAME.fullmatch(model) and not is_local:
        return model, True
    return plain_name(Path(model).name) or "an unknown base model", False


def table_cell(value: object) -> str:
    """Return a value as a cell of a Markdown table."""
    values = value if isinstance(value, list | tuple) else [value]
    text = ", ".join(str(item) for item in values)
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copy2(source, target)


def write_sample_games(source: Path, target: Path, step: int) -> Path | None:
    """Write games of the last recorded step that is not after a checkpoint.

    Args:
        source: A run folder, or a folder that already contains sample games.
        target: The folder in whose `episodes/` the file is written.
        step: The checkpoint's step.

    Returns:
        The file; None if no step up to the checkpoint's was recorded, or its file cannot be read.

    Raises:
        OSError: The file cannot be written.
    """
    files = {}
    for recorded_step, file in recorded_steps(source).items():
        if recorded_step <= step:
            files[recorded_step] = file
    if not files:
        return None
    newest = files[max(files)]
    try:
        recordings, _ = read_recordings([newest])
    except SettingsError as error:
        logger.warning("no sample games: %s", error)
        return None
    lines = _sample_lines(recordings)
    if not lines:
        return None
    path = target / EPISODES / newest.name
    path.parent.mkdir(parents=True)
    write_text_atomic(path, "".join(lines))
    return path


def _sample_lines(recordings: Sequence[Recording]) -> list[str]:
    """Return the lines of all games of some tasks, in order of their numbers."""
    lines: dict[int, str] = {}
    num_bytes = 0
    tasks = dict.fromkeys(_task(recording) for recording in spread(recordings, NUM_REPLAYS))
    for task in tasks:
        task_lines = {}
        for recording in recordings:
            if _task(recording) == task:
                task_lines[recording.number] = _line(recording)
        task_bytes = _count_bytes(task_lines.values())
        if num_bytes + task_bytes <= _MAX_GAME_BYTES:
            lines.update(task_lines)
            num_bytes += task_bytes
    return [lines[number] for number in sorted(lines)]


def _count_bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) for line in lines)


def _task(recording: Recording) -> tuple[str, str, int]:
    """Return the identity of a game's task: rules, split and seed."""
    episode = recording.episode
    return episode.spec_hash, episode.suite, episode.seed


def _line(recording: Recording) -> str:
    """Return a game as a line of JSON, without token ids and logprobs."""
    turns = []
    for turn in recording.episode.turns:
        turns.append(replace(turn, prompt_ids=(), reply_ids=(), logprobs=()))
    episode = replace(recording.episode, turns=tuple(turns))
    return json_text(recording_to_json(replace(recording, episode=episode)))
