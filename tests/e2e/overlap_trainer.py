"""A real trainer with HANABI_OVERLAP whose server is a sleep.

Games are made when they are asked for, by scripts; the rest is as in `scripted_trainer`. The plan
says how long an answer takes (`Plan.seconds`) and whether a player's games come from the version
before (`Plan.stale`).
"""

import json
import sys
import time
from typing import Any

import scripted_trainer
import torch

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.processes import leave
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.training import mismatch
from hanabi_grpo.training.link import GamesRequest, ServerLink
from hanabi_grpo.training.main import main
from hanabi_grpo.training.run import TrainingRun
from hanabi_grpo.types import player_name

PLAN = scripted_trainer.PLAN
_pushed: dict[int, dict[str, torch.Tensor]] = {}
"""LoRA weights by version."""
_answers: dict[str, RolloutResult] = {}
"""Played games that were not fetched yet, by their request."""
_real_prepare = ServerLink.prepare


def push(link: Any, model: Any, names: tuple[str, ...], version: int) -> None:
    """Keep the trainer's model and a copy of its LoRA weights."""
    link.model = model
    link.instance_id = "scripted"
    weights = {}
    for name, value in model.named_parameters():
        if "lora_" in name:
            weights[name] = value.detach().clone()
    _pushed[version] = weights


def _set_weights(model: Any, version: int, player: str) -> None:
    """Give a player's adapter the weights that it had in a version."""
    weights = _pushed[version]
    with torch.no_grad():
        for name, value in model.named_parameters():
            if f".{player}." in name:
                value.copy_(weights[name])


def _key(request: GamesRequest) -> str:
    return json.dumps([request.version, request.tasks])


def prepare(link: Any, tasks: list[TaskRow], names: tuple[str, ...], version: int) -> GamesRequest:
    """Play the games of a version; the request for them only takes time.

    They are played here, while the trainer's weights are those of the version.

    Args:
        link: The trainer's link to its server.
        tasks: The rows of the tasks.
        names: Names of the run's adapters.
        version: The version that plays.
    """
    if PLAN.stale is None or version == 0:
        result = scripted_trainer.play(link, tasks, names, version)
    else:
        player = player_name(PLAN.stale)
        _set_weights(link.model, version - 1, player)
        result = scripted_trainer.play(link, tasks, names, version)
        _set_weights(link.model, version, player)
    request = _real_prepare(link, tasks, names, version)
    _answers[_key(request)] = result
    return request


def fetch(link: Any, request: GamesRequest) -> RolloutResult:
    """Return the games of a request after the time that they take."""
    time.sleep(PLAN.seconds)
    return _answers.pop(_key(request))


if __name__ == "__main__":
    ServerLink.push = push
    ServerLink.play = scripted_trainer.play
    ServerLink.prepare = prepare
    ServerLink.fetch = fetch
    ServerLink.connect = scripted_trainer.do_nothing
    ServerLink.copy_log = scripted_trainer.do_nothing
    ServerLink.disconnect = scripted_trainer.do_nothing
    TrainingRun.probe_adapters = scripted_trainer.do_nothing
    TrainingRun.logprobs = scripted_trainer.logprobs
    mismatch.surprise_score = scripted_trainer.ask_nothing
    mismatch.repeat_score = scripted_trainer.ask_nothing
    leave(main(sys.argv[1:]))
