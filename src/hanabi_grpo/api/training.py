"""`Trainer`: a training run in a separate process, like `hanabi-grpo train`."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from hanabi_grpo.api.runs import Run, load_run
from hanabi_grpo.api.servers import ENTRY, Server, make_missing_model, needs_own_server, serve
from hanabi_grpo.api.settings import GivenSettings, read_given
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import TrainingError
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import OUTPUTS, run_folder_name
from hanabi_grpo.settings import Settings
from hanabi_grpo.texts import visible_line

_NUM_LOG_LINES = 25
"""Number of a failed trainer's last lines that an error quotes."""
_GRACE_SECONDS = 60.0
"""Time that a trainer has to stop before it is killed; it may be writing a checkpoint."""


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Trainer:
    """One training run: settings, and `train`.

    Settings have the names of their variables (docs/settings.md), or these names in lower case
    without "hanabi_": `max_steps=60` is MAX_STEPS, `preset="laptop"` is HANABI_PRESET. Omitted
    settings come from the environment variables, `.env` and the profile, as for the commands.

    Example:
        env = hg.make_env("hanabi", preset="laptop")
        run = hg.Trainer(env=env, max_steps=60, output_dir="outputs/my-run").train()
        run.metrics["score/mean"].plot()
    """

    def __init__(
        self, settings: GivenSettings = None, *, env: Setup[Any] | str | None = None, **given: Any
    ) -> None:
        """Resolve the settings; nothing is started yet.

        Args:
            settings: Settings, or a mapping of names to values.
            env: The environment, see `make_env`.
            **given: Further settings.

        Raises:
            SettingsError: A name is unknown or given twice, or a value is not allowed.
        """
        self._given = read_given(settings, env=env, **given)

    @property
    def settings(self) -> Settings:
        """Every setting with its value."""
        return self._given.settings

    def train(
        self,
        *,
        server: Server | None = None,
        options: Sequence[str] = (),
        say: Callable[[str], None] = _print_line,
    ) -> Run:
        """Train to the end, and return the run.

        The trainer is a separate process, like `hanabi-grpo train`, so this process needs neither
        torch nor GPU memory. Episodes are played on `server` if given, else on the server at
        VLLM_SERVER_HOST and VLLM_SERVER_PORT if they are set, else on a server that is started for
        this run. An interrupt (Ctrl-C, or a notebook's stop) stops training cleanly; RESUME
        continues it.

        Args:
            server: The server on which episodes are played, see `serve`.
            options: Options for ms-swift, see docs/pass-through.md.
            say: Receives each line that the trainer prints.

        Raises:
            SettingsError: Settings contradict each other.
            RunFolderError: The run folder is in use.
            ServerError: The server could not be started.
            TrainingError: The trainer failed; the message ends with its last lines.
        """
        folder = self._folder()
        with ExitStack() as stack:
            if needs_own_server(self._given, server):
                make_missing_model(self._given, say)
                server = stack.enter_context(serve(self._given.environ))
            environ = {**self._given.environ, "OUTPUT_DIR": str(folder)}
            if server is not None:
                environ = {**server.environ, **environ}
            _run_trainer(environ, options, say)
        return load_run(folder)

    def _folder(self) -> Path:
        """Return the run folder, chosen here so that `train` can load it at the end."""
        settings = self.settings
        plan = plan_resume(settings)
        if plan is not None:
            return plan.run_folder
        return settings.output_dir or OUTPUTS / run_folder_name(settings, datetime.now())


def _run_trainer(
    environ: Mapping[str, str], options: Sequence[str], say: Callable[[str], None]
) -> None:
    """Run the trainer's process to its end.

    Raises:
        TrainingError: Its exit code is not 0.
    """
    last_lines: deque[str] = deque(maxlen=_NUM_LOG_LINES)
    process = subprocess.Popen(
        [*ENTRY, "train", *options],
        env={**os.environ, **environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # An interrupt must reach only this process, which then stops the trainer cleanly.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            text = visible_line(line.rstrip("\n"))
            last_lines.append(text)
            say(text)
        code = process.wait()
    finally:
        _end(process)
    if code:
        quoted = "\n    ".join(last_lines) or "(it printed nothing)"
        raise TrainingError(
            f"the trainer failed with exit code {code}; its last lines:\n    {quoted}"
        )


def _end(process: "subprocess.Popen[str]") -> None:
    """End the trainer and everything that it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
