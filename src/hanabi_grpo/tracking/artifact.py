"""The folder that goes up as an artifact: `artifacts/step_N` of the run folder.

It holds every adapter of `checkpoint-N` with its manifest, the card, the settings, the score of the
training games, evaluations that lie in the run folder and some recorded games; no optimizer state.
`hanabi-grpo evaluate` and `view` take such a folder as it is. Its adapters are hard links, so it
costs next to nothing while the checkpoint is there, and outlives its rotation.

The games are whole tasks, those of the replay page, so that `hanabi-grpo view` compares a game with
the same others as in training. Token ids and logprobs are left out: nobody trains on these files.
"""

import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.rollout.recordings import (
    NUM_REPLAYS,
    read_recordings,
    recorded_steps,
    recording_to_json,
    spread,
)
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.manifest import MANIFEST, Manifest, check_checkpoint, spec_hashes
from hanabi_grpo.runs.resume import TRAINER_STATE
from hanabi_grpo.runs.run_folder import json_text, new_folder, write_json_atomic, write_text_atomic
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.settings.defaults import is_local_model
from hanabi_grpo.tracking.record import RunningScore

logger = logging.getLogger(__name__)

FOLDER = "artifacts"
CARD, SCORE, SETTINGS, EVALUATIONS = (
    "README.md",
    "training_score.json",
    "settings.json",
    "evaluation",
)
_MOST_GAMES = 4_000_000  # Bytes of sample games; tasks that would not fit are left out
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)
_MOST_NAME = 128  # Characters of a name that W&B takes
_CARD = """\
# Players of {env}

LoRA adapters for language models that play {env}, trained with GRPO by hanabi-grpo.

| | |
|---|---|
{rows}

The score is of sampled training games, by the versions of the last steps; it is no evaluation.

```bash
hanabi-grpo evaluate FOLDER --own-server     # FOLDER: this one
```
"""


def build_artifact(
    run_folder: Path, checkpoint: Path, settings: Settings, score: RunningScore | None
) -> tuple[Path, dict[str, Any]]:
    """Make `artifacts/step_N` of a run's `checkpoint-N`, or make it anew; returns it with the
    artifact's metadata.

    Every file of the checkpoint is compared with the manifest. A RunFolderError where the
    checkpoint is damaged or gone, or nothing can be written."""
    manifest = check_checkpoint(checkpoint)
    evaluations = _by_file_name(find_evaluations(run_folder).paths)
    folder = run_folder / FOLDER / f"step_{manifest.step}"
    # Rests of a killed process.
    for rest in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(rest, ignore_errors=True)
    try:
        with new_folder(folder) as partial:
            for name in (*manifest.files, MANIFEST):
                if not name.startswith(f"{TRAINER_STATE}/"):
                    _link(checkpoint / name, partial / name)
            write_json_atomic(partial / SETTINGS, {"settings": settings_values(settings)})
            if score is not None:
                said = {
                    "of": "training games, sampled, of the last steps up to this checkpoint",
                    "mean": score.mean,
                }
                said |= {"standard_error": score.standard_error, "steps": score.num_steps}
                write_json_atomic(partial / SCORE, said)
            for name, path in evaluations.items():
                _link(path, partial / EVALUATIONS / name)
            games = write_sample_games(run_folder, partial, manifest.step)
            metadata = _metadata(settings, manifest, score)
            facts = {
                "base model": metadata["base_model"],
                "optimizer steps": manifest.step,
                "adapters": metadata["adapters"],
                "preset": f"{settings.preset or 'as the dataset says'} (rules "
                f"{', '.join(metadata['spec_hashes'])})",
                "LoRA rank / alpha": f"{settings.lora_rank} / {settings.lora_alpha}",
                "score of the last training games": score.text if score else "unknown",
                "evaluations": ", ".join(evaluations) or "none beside this card",
                "sample games": games.name if games else "none beside this card",
            }
            rows = "\n".join(f"| {name} | {table_cell(value)} |" for name, value in facts.items())
            write_text_atomic(partial / CARD, _CARD.format(env=settings.env, rows=rows))
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written ({error.strerror}); {checkpoint} is as it was."
        ) from error
    return folder, metadata


def _metadata(settings: Settings, manifest: Manifest, score: RunningScore | None) -> dict[str, Any]:
    facts = manifest.facts
    return {
        "step": manifest.step,
        "players": settings.players,
        "adapters": list(facts.get("adapters", [])),
        "base_model": base_name(str(settings.model))[0],
        "base_fingerprint": facts.get("model_fingerprint"),
        "rank": settings.lora_rank,
        "alpha": settings.lora_alpha,
        "env": settings.env,
        "preset": settings.preset,
        "spec_hashes": list(spec_hashes(facts)),
        "score": score.mean if score else None,
        "score_se": score.standard_error if score else None,
        "score_steps": score.num_steps if score else 0,
        "score_of": "training games, sampled",
        "commit": commit(),
    }


def artifact_name(settings: Settings, run_folder: Path) -> str:
    """Return CKPT_ARTIFACT_NAME, or a name after the run folder; characters that W&B refuses become
    dashes.
    """
    if settings.ckpt_artifact_name:
        return settings.ckpt_artifact_name
    own = _NOT_IN_A_NAME.sub("-", run_folder.resolve().name).strip("-.") or "run"
    return f"{own[: _MOST_NAME - 9]}-adapters"


def _by_file_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return files by a name for each in one folder: their own, with a number where it is taken.

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
    """Return the commit of the checkout that this package runs from, with "+changes" where files
    differ from it.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    words = [
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
        return subprocess.run(
            words, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def base_name(model: str) -> tuple[str, bool]:
    """Return the base model's name for publishing, given MODEL of its training, and whether it is a
    hub name.

    A local model goes by the last part of its folder: whole paths name machines and people.
    """
    if HUB_NAME.fullmatch(model) and not is_local_model(model) and not Path(model).exists():
        return model, True
    return _NOT_IN_A_NAME.sub("-", Path(model).name) or "an unknown base model", False


def table_cell(value: object) -> str:
    """Return a value as a cell of a Markdown table."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links.
        shutil.copy2(source, target)


def write_sample_games(source: Path, target: Path, step: int) -> Path | None:
    """Write games of the last step that was recorded up to a checkpoint's into `episodes/` of a
    folder.

    `source` is a run folder, or a folder that holds sample games already. Returns the file; None
    where no step up to the checkpoint's was recorded, or its file cannot be read. Raises an OSError
    where it cannot be written."""
    files = {
        recorded: file for recorded, file in recorded_steps(source).items() if recorded <= step
    }
    if not files:
        return None
    try:
        recordings, _ = read_recordings([files[max(files)]])
    except SettingsError as error:
        logger.warning("no sample games: %s", error)
        return None
    kept: dict[int, str] = {}
    for task in dict.fromkeys(map(_task, spread(recordings, NUM_REPLAYS))):
        lines = {one.number: _line(one) for one in recordings if _task(one) == task}
        if sum(len(line.encode()) for line in (*kept.values(), *lines.values())) <= _MOST_GAMES:
            kept |= lines
    if not kept:
        return None
    path = target / "episodes" / files[max(files)].name
    path.parent.mkdir(parents=True)
    write_text_atomic(path, "".join(kept[number] for number in sorted(kept)))
    return path


def _task(recording: Recording) -> tuple[str, str, int]:
    episode = recording.episode
    return episode.spec_hash, episode.suite, episode.seed


def _line(recording: Recording) -> str:
    turns = tuple(
        replace(turn, prompt_ids=(), reply_ids=(), logprobs=()) for turn in recording.episode.turns
    )
    slim = replace(recording, episode=replace(recording.episode, turns=turns))
    return json_text(recording_to_json(slim))
