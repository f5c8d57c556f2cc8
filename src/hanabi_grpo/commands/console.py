"""What commands share at the terminal: printing, bars, interruption, the other terminal's command,
offline switches.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.run_folder import json_text
from hanabi_grpo.settings import (
    LoadedSettings,
    Settings,
    load_settings,
    settings_json,
    settings_table,
    variables,
)
from hanabi_grpo.settings.gpus import Terminal, gpu_share
from hanabi_grpo.settings.refs import split_player
from hanabi_grpo.settings.variables import typed

_SECTIONS: Mapping[Terminal, tuple[str, ...]] = {
    "server": ("run", "server", "game"),
    "trainer": ("run", "game", "trainer", "tracking"),
}
"""What each terminal prints of the settings."""
ROLLOUT_SCRIPT = "tools/rollout/rollout_hanabi_gym.sh"
TRAIN_SCRIPT = "tools/train/train_grpo_msswift.sh"
INTERRUPTED = 130
"""Exit code of a command that was stopped and can go on."""


def make_console(*, aside: bool = False) -> Console:
    """Return a console for standard output; `aside` for standard error, where progress and what is
    no result go.

    A table is never narrower than 120 columns where it is not a terminal.
    """
    width = None if aside or sys.stdout.isatty() else 120
    return Console(stderr=aside, width=width, highlight=False, emoji=False)


def sayer(console: Console) -> Callable[..., None]:
    """Return what prints a text as it is, each line whole so that it can be copied; `style` is
    rich's.
    """

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    return say


def print_json(document: Any, indent: int | None = None) -> None:
    """Write a document to standard output, on one line without `indent`; a number that is not
    finite becomes null.
    """
    sys.stdout.write(json_text(document, indent=indent))


def bars(console: Console) -> Progress:
    """Return rich's progress with our columns."""
    text = TextColumn("{task.description}", markup=False)
    return Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console)


@contextmanager
def interruptible(summary: Callable[[], str]) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and end the command with a line on what is done and how to go on,
    and with 130.

    A server that fails is an error, after the same line.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (KeyboardInterrupt, ServerError) as error:
        sayer(make_console(aside=True))(summary())
        if isinstance(error, ServerError):
            raise
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag, so that a piece of work is finished or not begun; the
    second one raises.
    """
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_settings(*, as_json: bool) -> None:
    """Print every setting, its value and its origin."""
    loaded = load_settings()
    if as_json:
        print_json(settings_json(loaded), indent=2)
    else:
        make_console().print(settings_table(loaded))


def announce(console: Console, terminal: Terminal) -> LoadedSettings:
    """Resolve the settings, print those that are no defaults, and set what other software reads
    (`set_environ`).
    """
    loaded = load_settings()
    console.print(settings_table(loaded, _SECTIONS[terminal], only_given=True))
    if why := set_environ(loaded, terminal):
        sayer(console)(why)
    return loaded


def set_environ(loaded: LoadedSettings, terminal: Terminal) -> str:
    """Give other software its share of `.env` and the profile, and this terminal its GPUs; returns
    why it has others.

    Raises:
        SettingsError: A list of GPUs is too short for both terminals.
    """
    give_environ(loaded)
    share = gpu_share(loaded, terminal)
    if share is None:
        return ""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share.names)
    return share.reason


def give_environ(loaded: LoadedSettings) -> None:
    """Set what `.env` and the profile hold for other software, and `offline_environ`, where this
    shell has no value.
    """
    for name, value in {**loaded.dotenv_environ, **offline_environ(loaded.settings)}.items():
        os.environ.setdefault(name, value)


def offline_environ(settings: Settings) -> dict[str, str]:
    """Return switches that keep libraries off the network; none when the model or a checkpoint must
    come from a hub.

    A model folder needs nothing from a hub, and without these switches a machine that is offline
    waits through every library's retries. `USE_HF` makes ms-swift take models from the hub that
    vLLM takes them from."""
    quiet = {"USE_HF": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"}
    from_hub = any(
        split_player(entry)[1].startswith("hf:")
        for entry in (*settings.start_from, *settings.partners)
    )
    if from_hub or not Path(settings.model).is_dir():
        return quiet
    return {**quiet, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def server_command(loaded: LoadedSettings) -> str:
    """Return the command that starts a server for this trainer, as typed in the other terminal."""
    settings, default = loaded.settings, Settings()
    words = typed_words(loaded, both=True)
    if settings.vllm_server_port != default.port:
        words.append(f"PORT={settings.vllm_server_port}")
    if settings.vllm_server_host not in ("localhost", default.host):
        words.append(f"HANABI_HOST={settings.vllm_server_host}")
    return " ".join([*words, "bash", ROLLOUT_SCRIPT])


def typed_words(
    loaded: LoadedSettings, *, both: bool = False, without: Collection[str] = ()
) -> list[str]:
    """Return NAME=value of what only this shell knows, with `both` only of what server and trainer
    share.

    `.env` is read by every terminal. Keys are named, not shown.
    """
    words = []
    for variable in variables(loaded.settings.env):
        if (
            loaded.origins[variable.field] == "shell"
            and variable.env not in without
            and (variable.both or not both)
        ):
            value = typed(getattr(loaded.settings, variable.field))
            words.append(
                f"{variable.env}="
                + (f'"${variable.env}"' if variable.secret else shlex.quote(value))
            )
    return words
