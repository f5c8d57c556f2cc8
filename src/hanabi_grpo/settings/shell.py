"""Commands as typed in a shell, with the settings that only this shell knows."""

import shlex
import sys
from collections.abc import Collection
from pathlib import Path

from hanabi_grpo.settings.load import LoadedSettings
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.sources import TYPED
from hanabi_grpo.settings.variables import typed

ROLLOUT_SCRIPT = "tools/rollout/rollout_hanabi_gym.sh"
"""Starts terminal 1, the rollout server."""
TRAIN_SCRIPT = "tools/train/train_grpo_msswift.sh"
"""Starts terminal 2, the trainer."""


def server_command(loaded: LoadedSettings) -> str:
    """Return the command that starts a server for this trainer, as typed in the other terminal."""
    settings = loaded.settings
    default = Settings()
    assignments = shell_assignments(loaded, both=True)
    if settings.vllm_server_port != default.port:
        assignments.append(f"PORT={settings.vllm_server_port}")
    if settings.vllm_server_host not in ("localhost", default.host):
        assignments.append(f"HANABI_HOST={settings.vllm_server_host}")
    return " ".join([*assignments, *start_words(ROLLOUT_SCRIPT, "serve")])


def start_words(script: str, command: str) -> list[str]:
    """Return the words that start a terminal: the checkout's script, or else the command itself.

    Example:
        start_words(TRAIN_SCRIPT, "train") == ["bash", "tools/train/train_grpo_msswift.sh"]
    """
    if Path(script).is_file():
        return ["bash", script]
    return [shlex.quote(sys.executable), "-m", "hanabi_grpo.cli", command]


def shell_assignments(
    loaded: LoadedSettings, *, both: bool = False, without: Collection[str] = ()
) -> list[str]:
    """Return NAME=value for every setting that only this shell or its command line knows.

    Every terminal reads `.env`, so its values are omitted. Keys are named, not shown.

    Args:
        loaded: The settings.
        both: Return only settings that server and trainer share.
        without: Names to leave out.

    Example:
        ["HANABI_PRESET=mini", 'HANABI_API_KEY="$HANABI_API_KEY"']
    """
    assignments = []
    for variable in variables(loaded.settings.env):
        if loaded.origins[variable.field] not in TYPED or variable.env in without:
            continue
        if both and not variable.both:
            continue
        if variable.secret:
            value = f'"${variable.env}"'
        else:
            value = shlex.quote(typed(getattr(loaded.settings, variable.field)))
        assignments.append(f"{variable.env}={value}")
    return assignments
