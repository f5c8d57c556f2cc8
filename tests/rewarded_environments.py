"""An installed package whose environments have rewards, good ones and faulty ones."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.rewards import with_rewards
from hanabi_grpo.types import Episode
from toy_environments import GUESS

WITNESS = "REWARD_WITNESS"
"""Variable that names a file in which a reward notes the process that computes it."""


def count_turns(episode: Episode) -> list[float]:
    """Pay a hundredth of a point for each turn, and note where."""
    path = os.environ.get(WITNESS)
    if path:
        row = {"command": psutil.Process().cmdline(), "torch": "torch" in sys.modules}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return [len(episode.turns) / 100] * episode.num_players


def _raise(episode: Episode) -> list[float]:
    return [1.0 / 0]


def _hang(episode: Episode) -> list[float]:
    while True:
        time.sleep(1000)


def make(name: str, function: Callable[[Episode], Any]) -> Any:
    return with_rewards(GUESS, name=name, rewards={"extra": function}, reward_range=(0.0, 1.0))


PAID = make("paid", count_turns)
FAULTY = {
    "raises": make("raises", _raise),
    "not_a_number": make("not_a_number", lambda episode: [float("nan")]),
    "too_many": make("too_many", lambda episode: [0.0, 0.0]),
    "no_list": make("no_list", lambda episode: 1.0),
    "text": make("text", lambda episode: ["much"]),
}
HANGS = make("hangs", _hang)
RAISES, NOT_A_NUMBER, TOO_MANY, NO_LIST, TEXT = FAULTY.values()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the environments as an installed package would be, also for child processes."""
    write_package(folder)
    monkeypatch.syspath_prepend(str(folder))
    tests = str(Path(__file__).parent)
    if tests not in sys.path:
        monkeypatch.syspath_prepend(tests)
    registry._load.cache_clear()


def write_package(folder: Path) -> None:
    """Write what an installed package leaves in a folder of the path."""
    info = folder / "rewarded-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rewarded\nVersion: 1.0\n")
    lines = ["[hanabi_grpo.environments]", "hanabi_brief = hanabi_brief:HANABI_BRIEF"]
    for name in ("paid", "hangs", *FAULTY):
        lines.append(f"{name} = rewarded_environments:{name.upper()}")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
