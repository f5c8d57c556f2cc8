"""Run folders as a trainer leaves them, written without one: settings, rows, games, checkpoints."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.rollout.recordings import write_episodes
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.settings import load_settings, settings_json
from hanabi_grpo.types import Episode

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
PLAYERS = ("player_0", "player_1")
SECRET = "a-key-that-no-file-may-hold"


def scripted_games(
    script: str, *seeds: int, config: EnvConfig = LAPTOP, suite: str = "train", noise: float = 0.0
) -> list[Episode]:
    """Return games that scripts play.

    Args:
        script: Who plays every seat.
        seeds: A game for each; one that is there twice has two games.
        config: The board.
        suite: The split.
        noise: Other than 0: hint bots who err that often play instead.
    """
    policy = rule_bot("hint-bot", noise) if noise else HANABI.policies[script]()
    policies = dict.fromkeys(range(config.players), policy)
    setup = Setup(HANABI, config)
    num_games: Counter[int] = Counter()
    episodes = []
    for seed in seeds:
        task = setup.task(suite, seed)
        episodes.append(play_scripts(task, policies, number=num_games[seed]))
        num_games[seed] += 1
    return episodes


def tracked_run(
    folder: Path,
    *,
    steps: int = 3,
    checkpoints: tuple[int, ...] = (),
    games: bool = True,
    **variables: str,
) -> Path:
    """Write a run of some steps, whose scores rise by 0.1 from 1.0, with a key in its settings.

    Args:
        folder: The run folder.
        steps: Rows of metrics.
        checkpoints: Steps that have one.
        games: Whether the last step has recorded games.
        variables: Settings by their environment variables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environ = {
        "MODEL": "models/tiny",
        "LORA_RANK": "8",
        "REPORT_TO": "wandb",
        "HANABI_API_KEY": SECRET,
        **variables,
        "OUTPUT_DIR": str(folder),
    }
    settings = settings_json(load_settings(environ, dotenv=folder / "none.env"))
    (folder / "settings.json").write_text(json.dumps(settings))
    for step in range(1, steps + 1):
        add_row(folder, step)
    if games:
        write_episodes(folder, steps, [scripted_games("random", seed) for seed in range(6)])
    for step in checkpoints:
        add_checkpoint(folder, step)
    return folder


def add_row(folder: Path, step: int, **figures: Any) -> None:
    """Append a step's row to `metrics.jsonl`."""
    row = {
        "step": step,
        "seconds": 2.0 * step,
        "games": 16.0,
        "score/mean": 1.0 + 0.1 * (step - 1),
        "loss": None,
        "illegal_per_game": 0.5,
        "player_0/reward": 1.0,
        "player_1/reward": 1.5,
        "time/push": 0.1,
    }
    row.update(figures)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def add_checkpoint(folder: Path, step: int) -> Path:
    """Write `checkpoint-N` with an adapter for each player, and a trainer's state."""

    def fill(partial: Path) -> None:
        for name in PLAYERS:
            (partial / name).mkdir()
            (partial / name / "adapter_model.safetensors").write_bytes(f"{name} at {step}".encode())
            (partial / name / "adapter_config.json").write_text('{"r": 8}')
        (partial / "trainer").mkdir()
        (partial / "trainer/optimizer.safetensors").write_bytes(b"moments")

    facts = {
        "adapters": list(PLAYERS),
        "spec_hashes": ["2beb8aa616bb"],
        "model_fingerprint": "f00d",
    }
    return write_checkpoint(folder, step, fill, facts, needed_bytes=100)
