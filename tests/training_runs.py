"""Folders of training runs that are written down, not trained."""

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
    """Evaluate a lineup of one script in every seat.

    Args:
        name: The script, e.g. "random".
        setup: Environment and configuration.
        num_tasks: Number of tasks, one episode each.
        suite: The suite that the tasks come from.
    """
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
    """Write a run folder with one row of metrics per score, two seconds apart.

    Args:
        folder: The run folder; made where it does not exist.
        scores: Mean score of each step, from step 1 on; None where it is not known.
        preset: The board that the scores are also recorded for; None as old versions wrote rows.
        games: Number of games of each step.
        settings: Content of settings.json, which is not written without it.
        tail: Text at the end of metrics.jsonl, e.g. half a row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for step, score in enumerate(scores, start=1):
        metrics = {"score/mean": score}
        if preset:
            metrics[f"games/{preset}"] = games
            metrics[f"score/{preset}"] = score
        add_row(folder, step, games=games, **metrics)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(tail)
    if settings is not None:
        (folder / "settings.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    return folder


def made_evaluation(path: Path, scores: Sequence[float], **fields: Any) -> EvaluationResult:
    """Write an evaluation with these scores.

    Its other fields are those of random play on as many tasks, or as given.
    """
    random_play = evaluate_scripted("random", LAPTOP, len(scores))
    changes = {"scores": tuple(scores), "temperature": 1.0, **fields}
    result = dataclasses.replace(random_play, **changes)
    write_document(path, result_to_json(result))
    return result
