"""`hanabi-grpo demo`: two players of the shipped tiny model, evaluated, trained, evaluated again.

It is what `tools/demo.sh` does on its default board, for a package that is installed without a
checkout.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from hanabi_grpo.api.environments import make_env
from hanabi_grpo.api.playing import evaluate
from hanabi_grpo.api.servers import Server, serve
from hanabi_grpo.api.training import Trainer
from hanabi_grpo.commands.console import interruptible, make_console, sayer
from hanabi_grpo.commands.report import report
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import check_tasks
from hanabi_grpo.runs.run_folder import OUTPUTS, TRAIN
from hanabi_grpo.settings.defaults import CPU_REPLY, LAPTOP
from hanabi_grpo.settings.shipped import TINY_MODEL_COUNTED, shipped_folder

BOARD: dict[str, Any] = {
    "preset": LAPTOP,
    "observation": "compact",
    "memory": "turn",
    "deductions": "counted",
}
"""What is played: each message holds the whole position and the cards that are still possible."""
TRAINING: dict[str, Any] = {
    "tasks_per_step": 24,
    "num_generations": 8,
    "updates_per_step": 2,
    "minibatches": 2,
    "advantage": "rloo",
    "teacher": "save-bot",
    "teacher_steps": 12,
    "entropy_bonus": 0.4,
    "entropy_target": 0.12,
    "learning_rate": 4e-3,
    "lr_scheduler_type": "linear",
}
"""The settings of `tools/demo.sh`: labels of a bot at the start, then the reward alone."""
_GAMES_PER_STEP = TRAINING["tasks_per_step"] * TRAINING["num_generations"]


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of 192 games.")] = 72,
    tasks: Annotated[int, typer.Option(help="Held-out tasks per evaluation.")] = 1000,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder of everything.", show_default="outputs/demo-DATE-PID"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of adapters, tasks and sampling.", show_default="SEED"),
    ] = None,
) -> None:
    """Train two players on a small board of Hanabi, with a score before and after.

    The model is the tiny one that is shipped with this package, so nothing is downloaded and no GPU
    is needed: 3 to 4 minutes on two cores. tools/demo.sh of a checkout has other games.

    Environment: SEED and HANABI_SERVER_TIMEOUT, and all others of serve and train that the demo
    does not set.
    """
    check_tasks(tasks, "eval")
    folder = out or OUTPUTS / f"demo-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    if folder.exists():
        raise SettingsError(f"--out {folder}: already exists; choose a new folder.")
    # The board, the tiny model's style of prompts, and its short replies, on a GPU as well.
    settings: dict[str, Any] = {
        "model": shipped_folder(TINY_MODEL_COUNTED),
        "max_completion_length": CPU_REPLY,
        "report_to": "none",
        **TRAINING,
    }
    if seed is not None:
        settings["seed"] = seed
    env = make_env("hanabi", **BOARD)
    say = _heading(sayer(make_console()))
    with interruptible(lambda: f"stopped; kept: {folder}"):
        say("1 of 5: starting the rollout server, which loads vLLM and the model")
        with serve(settings, env=env, logs=folder) as server:
            who = "players pretrained on games of a noisy hint bot"
            say(f"2 of 5: before: {who} play {tasks} tasks")
            _score("base", "before", folder, env, tasks, server)
            say(f"3 of 5: training, {steps} steps of {_GAMES_PER_STEP} games")
            trainer = Trainer(settings, env=env, max_steps=steps, output_dir=str(folder / TRAIN))
            trainer.train(server=server, say=sayer(make_console()))
            say("4 of 5: after: the trained players play the same tasks")
            _score("served", "after", folder, env, tasks, server)
    say("5 of 5: what changed; scripted players for comparison")
    report(
        folder / TRAIN,
        html=folder / "report.html",
        png=folder / "learning_curve.png",
        markdown=folder / "report.md",
    )
    program = shlex.quote(sys.argv[0])
    sayer(make_console())(
        f"\nOpen {folder / 'report.html'} in a browser: curves, tables, games to step through. "
        f"Play with a trained player:\n    {_typed_board(settings['model'])} {program} play "
        f"{shlex.quote(str(folder / TRAIN))} --own-server"
    )


def _typed_board(model: str) -> str:
    """Return the variables with which a command typed later plays the demo's game."""
    variables = [f"HANABI_{name.upper()}={BOARD[name]}" for name in BOARD]
    return " ".join([*variables, f"MODEL={shlex.quote(model)}"])


def _heading(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints a heading with the seconds so far."""
    start = time.monotonic()

    def heading(text: str) -> None:
        say(f"\n== {text} ({time.monotonic() - start:.0f} s)")

    return heading


def _score(lineup: str, label: str, folder: Path, env: Any, tasks: int, server: Server) -> None:
    """Evaluate a lineup, show the table, and keep the result where `report` finds it."""
    evaluation = evaluate(
        lineup, env, tasks=tasks, label=label, out=folder / f"{label}.json", server=server
    )
    console = make_console()
    console.print(evaluation.sheets()[0].rich())
