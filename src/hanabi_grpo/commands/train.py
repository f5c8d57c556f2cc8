"""`hanabi-grpo train`: check everything, wait for the server, then become the trainer process."""

import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
from rich.console import Console

from hanabi_grpo.client import server_url
from hanabi_grpo.commands.console import announce, make_console, server_command
from hanabi_grpo.datasets import load_rows, num_steps
from hanabi_grpo.errors import ServerError
from hanabi_grpo.fingerprint import resolve_model
from hanabi_grpo.runs import prepare_run_folder, write_json_atomic
from hanabi_grpo.settings import BatchPlan, LoadedSettings, Settings, batch_plan, settings_json

_TRAINER = "hanabi_grpo.training.main"
_REMIND_SECONDS = 10.0
_POLL_SECONDS = 1.0


def train(extra_args: list[str]) -> None:
    """Check the settings, batch sizes, dataset, model and run folder; wait for the server; start the trainer.

    The trainer replaces this process, so that a signal from the terminal reaches it directly.

    Args:
        extra_args: ms-swift's own options, handed on.
    """
    console = make_console()
    loaded = announce(console, ("run", "game", "trainer", "tracking"))
    plan = batch_plan(loaded.settings)
    steps = num_steps(loaded.settings, load_rows(loaded.settings.dataset, loaded.settings))
    resolve_model(loaded.settings.model)
    folder = prepare_run_folder(loaded.settings)
    try:
        loaded = replace(loaded, settings=loaded.settings.model_copy(update={"output_dir": folder}))
        console.print(plan_line(loaded.settings, plan, steps), soft_wrap=True)
        console.print(f"run folder: {folder}", soft_wrap=True, markup=False)
        wait_for_server(loaded, console)
        settings_path = folder / "settings.json"
        write_json_atomic(settings_path, settings_json(loaded))
    except BaseException:
        _remove_if_empty(folder)
        raise
    command = trainer_argv(loaded.settings, settings_path, extra_args)
    console.print(f"server is ready; starting {shlex.join(command)}", soft_wrap=True, markup=False)
    sys.stdout.flush()
    os.execvpe(command[0], command, trainer_environ(loaded))


def plan_line(settings: Settings, plan: BatchPlan, steps: int) -> str:
    """Return the arithmetic of a step in one line."""
    return (
        f"{steps} steps of {plan.deals} deals × {settings.num_generations} games = {plan.games} games, "
        f"{plan.sequences} trajectories: {settings.nproc_per_node} process(es) × {settings.players} players × "
        f"{plan.micro_batches_per_player} micro-batches of {plan.per_device_train_batch_size}"
    )


def trainer_argv(settings: Settings, settings_path: Path, extra_args: list[str]) -> list[str]:
    """Return the trainer's command line: one process, or torchrun (by its module, so of this environment)."""
    launcher = []
    if settings.nproc_per_node > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(settings.nproc_per_node)]
    return [sys.executable, *launcher, "-m", _TRAINER, "--settings", str(settings_path), *extra_args]


def trainer_environ(loaded: LoadedSettings) -> dict[str, str]:
    """Return the trainer's environment; the key travels here because no file may hold it."""
    key = loaded.settings.api_key
    return {**os.environ, **({"HANABI_API_KEY": key.get_secret_value()} if key else {})}


def wait_for_server(
    loaded: LoadedSettings, console: Console, *, remind: float = _REMIND_SECONDS, poll: float = _POLL_SECONDS
) -> None:
    """Return once the server answers that it is healthy; remind of the command that starts it meanwhile.

    Args:
        loaded: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_SERVER_TIMEOUT and the key.
        console: Where reminders go.
        remind: Seconds between reminders.
        poll: Seconds between questions.

    Raises:
        ServerError: The time is up, or the server refuses the key.
    """
    settings = loaded.settings
    base = server_url(settings)
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
    start = time.monotonic()
    next_reminder = start
    # A proxy in the environment is meant for the internet, not for the machine next door.
    with httpx.Client(headers=headers, timeout=5.0, trust_env=False) as client:
        while (problem := _problem(client, base)) is not None:
            now = time.monotonic()
            if now - start >= settings.server_timeout:
                raise ServerError(
                    f"no rollout server at {base} after {settings.server_timeout:g} s ({problem}). Start it in another "
                    f"terminal: {server_command(loaded)} — or allow more time: HANABI_SERVER_TIMEOUT."
                )
            if now >= next_reminder:
                console.print(
                    f"waiting for the rollout server at {base} ({problem}; {now - start:.0f} of "
                    f"{settings.server_timeout:g} s). Type in another terminal:\n    {server_command(loaded)}",
                    soft_wrap=True,
                    markup=False,
                )
                next_reminder = now + remind
            time.sleep(min(poll, max(0.0, start + settings.server_timeout - now)))


def _problem(client: httpx.Client, base: str) -> str | None:
    try:
        answer = client.get(f"{base}/health/")
    except httpx.InvalidURL as error:
        raise ServerError(f"{base}: not an address ({error}); set VLLM_SERVER_HOST to a host name.") from error
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if answer.status_code in (401, 403):
        raise ServerError(
            f"{base} refuses this key ({answer.status_code}): set the same HANABI_API_KEY in both terminals."
        )
    return None if answer.is_success else f"it answers {answer.status_code}: {answer.text[:200]}"


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
