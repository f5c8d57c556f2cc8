"""A real trainer with HANABI_OVERLAP=1 whose server is a sleep: games are made when they are asked
for, by scripts.

The rest is as in `scripted_trainer`, whose `SCRIPTED` this reads as well: {"seconds": 0.5} is how
long an answer takes, and {"stale": 1} lets that player's games come from the version before, from
version 1 on, whatever their stamps say."""

import sys
import time
from typing import Any

import scripted_trainer
import torch

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.training.link import GamesRequest, ServerLink
from hanabi_grpo.training.main import main
from hanabi_grpo.training.run import TrainingRun
from hanabi_grpo.types import player_name

PLAN = scripted_trainer.PLAN
_kept: dict[int, dict[str, torch.Tensor]] = {}
_answers: dict[int, RolloutResult] = {}
_real_prepare = ServerLink.prepare


def _push(link: Any, model: Any, names: tuple[str, ...], version: int) -> None:
    link.model, link.instance_id = model, "scripted"
    _kept[version] = {
        name: value.detach().clone() for name, value in model.named_parameters() if "lora_" in name
    }


def _put(model: Any, values: dict[str, torch.Tensor], player: str) -> None:
    with torch.no_grad():
        for name, value in model.named_parameters():
            if f".{player}." in name:
                value.copy_(values[name])


def _prepare(
    link: Any, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
) -> GamesRequest:
    # Made here, while the weights are those of the version; the thread only takes its time.
    planted = "stale" in PLAN and version > 0
    if planted:
        _put(link.model, _kept[version - 1], player_name(PLAN["stale"]))
    _answers[version] = scripted_trainer._play(link, tasks, names, version)
    if planted:
        _put(link.model, _kept[version], player_name(PLAN["stale"]))
    return _real_prepare(link, tasks, names, version)


def _fetch(link: Any, request: GamesRequest) -> RolloutResult:
    time.sleep(PLAN.get("seconds", 0.2))
    return _answers.pop(request.version)


if __name__ == "__main__":
    ServerLink.push, ServerLink.play = _push, scripted_trainer._play
    ServerLink.prepare, ServerLink.fetch = _prepare, _fetch
    ServerLink.connect = ServerLink.copy_log = ServerLink.disconnect = scripted_trainer._nothing
    TrainingRun.logprobs = scripted_trainer._logprobs
    sys.exit(main(sys.argv[1:]))
