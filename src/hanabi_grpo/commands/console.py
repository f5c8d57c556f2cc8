"""What both terminals print and set: the settings table, the other terminal's command, offline switches."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hanabi_grpo.runs.run_folder import finite
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings, settings_table, variables
from hanabi_grpo.settings.gpus import Terminal, gpu_share
from hanabi_grpo.settings.refs import split_player
from hanabi_grpo.settings.variables import typed

SECTIONS: Mapping[Terminal, tuple[str, ...]] = {
    "server": ("run", "server", "game"),
    "trainer": ("run", "game", "trainer", "tracking"),
}
"""What each terminal prints of the settings."""
ROLLOUT_SCRIPT = "tools/rollout/rollout_hanabi_gym.sh"
TRAIN_SCRIPT = "tools/train/train_grpo_msswift.sh"


def make_console() -> Console:
    """Return a console for standard output; wide enough for a whole table when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, emoji=False)


def stderr_console() -> Console:
    """Return a console for progress and messages that are no result."""
    return Console(stderr=True, highlight=False, emoji=False)


def sayer(console: Console) -> Callable[..., None]:
    """Return what prints a text as it is, each line whole so that it can be copied; `style` is rich's."""

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    return say


def print_json(document: Any, indent: int | None = None) -> None:
    """Write a document to standard output, on one line without `indent`; a number that is not finite becomes null."""
    sys.stdout.write(json.dumps(finite(document), indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def announce(console: Console, sections: Sequence[str], terminal: Terminal) -> LoadedSettings:
    """Resolve the settings, print their table, and set what other software reads (`set_environ`)."""
    loaded = load_settings()
    console.print(settings_table(loaded, sections))
    if why := set_environ(loaded, terminal):
        sayer(console)(why)
    return loaded


def set_environ(loaded: LoadedSettings, terminal: Terminal) -> str:
    """Give other software its share of `.env` and the profile, and this terminal its GPUs.

    Returns:
        Why it has other GPUs than CUDA_VISIBLE_DEVICES says; empty when it has those.

    Raises:
        SettingsError: A list of GPUs is too short for both terminals.
    """
    for name, value in {**loaded.dotenv_environ, **offline_environ(loaded.settings)}.items():
        os.environ.setdefault(name, value)
    if (share := gpu_share(loaded, terminal)) is None:
        return ""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share.names)
    return share.why


def offline_environ(settings: Settings) -> dict[str, str]:
    """Return switches that keep libraries off the network; none when the model or a checkpoint must come from a hub.

    A model folder needs nothing from a hub, and without these switches a machine that is offline waits through
    every library's retries. `USE_HF` makes ms-swift take models from the hub that vLLM takes them from.
    """
    quiet = {"USE_HF": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"}
    from_hub = any(split_player(entry)[1].startswith("hf:") for entry in (*settings.start_from, *settings.partners))
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


def trainer_command(loaded: LoadedSettings) -> str:
    """Return the command that starts a trainer on this server, as typed in the other terminal."""
    settings, default = loaded.settings, Settings()
    words = typed_words(loaded, both=True)
    if settings.port != default.vllm_server_port:
        words.append(f"VLLM_SERVER_PORT={settings.port}")
    if settings.host not in ("localhost", "0.0.0.0", "::", default.vllm_server_host):
        words.append(f"VLLM_SERVER_HOST={settings.host}")
    return " ".join([*words, "bash", TRAIN_SCRIPT])


def typed_words(loaded: LoadedSettings, *, both: bool = False, without: Collection[str] = ()) -> list[str]:
    """Return NAME=value of what only this shell knows; `.env` is read by every terminal. Keys are named, not shown.

    Args:
        loaded: The settings.
        both: Only settings that server and trainer share.
        without: Names to leave out.
    """
    words = []
    for variable in variables(loaded.settings.env):
        if loaded.origins[variable.field] == "shell" and variable.env not in without and (variable.both or not both):
            value = typed(getattr(loaded.settings, variable.field))
            words.append(f"{variable.env}=" + (f'"${variable.env}"' if variable.secret else shlex.quote(value)))
    return words
