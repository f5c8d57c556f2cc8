"""Folders of trainings that are written down, not trained."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document
from tracked_runs import add_row

LAPTOP = Setup(HANABI, EnvConfig(preset="laptop", observation="compact", legal_moves=False))


def evaluate_scripted(
    name: str, setup: Setup[Any], num_tasks: int, suite: str = "eval"
) -> EvaluationResult:
    """Let one script fill every seat."""
    team = parse_lineup(name, setup.spec.num_players, env=setup.env)
    return evaluate_lineup(team, setup, num_tasks, suite=suite)


def made_run(
    folder: Path,
    scores: Sequence[float | None],
    *,
    preset: str | None = "laptop",
    games: float = 64.0,
    settings: dict[str, Any] | None = None,
    tail: str = "",
) -> Path:
    """Write one row per score from step 1 on, two seconds apart; without a preset as old versions
    did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for step, score in enumerate(scores, start=1):
        own = {f"games/{preset}": games, f"score/{preset}": score} if preset else {}
        add_row(folder, step, games=games, **{"score/mean": score, **own})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(tail)
    if settings is not None:
        (folder / "settings.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    return folder


def made_evaluation(path: Path, scores: Sequence[float], **other: Any) -> EvaluationResult:
    """Write an evaluation with these scores; its other figures are random play's on as many tasks,
    or as given.
    """
    played = evaluate_scripted("random", LAPTOP, len(scores))
    result = dataclasses.replace(played, **{"scores": tuple(scores), "temperature": 1.0, **other})
    write_document(path, result_to_json(result))
    return result
