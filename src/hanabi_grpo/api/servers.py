"""`serve`: a rollout server started by this program, for any number of calls."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.api.environments import make_env
from hanabi_grpo.api.settings import Given, GivenSettings, read_given, without_fields_of
from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.envs.base import Environment, Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.chosen import Chosen, choose
from hanabi_grpo.runs.run_folder import OUTPUTS
from hanabi_grpo.settings.load import is_made_by_server
from hanabi_grpo.terminal import VisibleConsole, sayer

ENTRY = (sys.executable, "-m", "hanabi_grpo.cli")
"""Command line prefix that starts a command of this package in a separate process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of a rollout server, and the settings that it was started with."""

    host: str
    port: int
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings as environment variables; they apply to calls that use the server."""


@contextmanager
def serve(
    settings: GivenSettings = None,
    *,
    env: Setup[Any] | str | None = None,
    logs: Path | str = OUTPUTS,
    **given: Any,
) -> Iterator[Server]:
    """Start a rollout server, yield it when it is ready, and stop it at the end of the block.

    It loads vLLM and the model, which takes 15 to 60 seconds on a CPU and about two minutes on a
    GPU. Every call without a server starts its own.

    Args:
        settings: Settings, or a mapping of names to values, see `read_given`.
        env: The environment, see `make_env`.
        logs: Folder of the server's log.
        **given: Further settings, e.g. `model="Qwen/Qwen3-4B"`.

    Raises:
        SettingsError: A setting is unknown or not allowed.
        ServerError: The server ended (the message quotes its log), or was not ready in time.

    Example:
        with hg.serve(env=env) as server:
            before = hg.evaluate("base", env=env, server=server)
            run = hg.Trainer(env=env, max_steps=60).train(server=server)
    """
    known = read_given(settings, env=env, **given)
    make_missing_model(known)
    say = sayer(console())
    with own_server(known.settings, say, environ=known.environ, folder=Path(logs)) as served:
        yield server_at(served.vllm_server_host, served.vllm_server_port, known.environ)


def server_at(host: str, port: int, environ: Mapping[str, str]) -> Server:
    """Return a server whose `environ` includes its address."""
    address = {"VLLM_SERVER_HOST": host, "VLLM_SERVER_PORT": str(port)}
    return Server(host=host, port=port, environ={**environ, **address})


def needs_own_server(given: Given, server: Server | None) -> bool:
    """Tell whether a call must start a server: none is given, and no setting names one."""
    return server is None and not given.has("vllm_server_host", "vllm_server_port")


def choose_game(
    env: Setup[Any] | Environment[Any] | str | None,
    settings: Mapping[str, Any],
    *,
    temperature: float | None,
    below: Mapping[str, str],
) -> tuple[Given, Chosen]:
    """Return all settings, and the game with how models sample.

    Args:
        env: The environment.
        settings: The caller's settings; those of the game must not differ from `env`'s.
        temperature: As in `play`.
        below: See `read_given`.

    Raises:
        SettingsError: As `read_given`.
    """
    game: Setup[Any] | None = None
    if env is None or isinstance(env, str):
        given = read_given(settings, env=env, below=below)
    else:
        game = env if isinstance(env, Setup) else make_env(env)
        # An environment object need not be installed, so these settings are those of any game.
        given = read_given(without_fields_of(game, settings), below=below)
    return given, choose(None, None, None, temperature, loaded=given.loaded, game=game)


def make_missing_model(given: Given, say: Callable[[str], None] = lambda line: None) -> None:
    """Make the environment's default tiny model, if it is needed and does not exist yet.

    Raises:
        SettingsError: The model cannot be made.
    """
    if not is_made_by_server(given.loaded):
        return
    say(f"making the tiny model {given.settings.model}")
    done = run_command(["tiny-model"], given.environ)
    if done.returncode:
        raise SettingsError(
            f"MODEL={given.settings.model}: the tiny model could not be made:\n{done.stdout}"
        )


def run_command(
    arguments: list[str], environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command of this package to its end, and return the process with its output."""
    return subprocess.run(
        [*ENTRY, *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )


def console() -> VisibleConsole:
    """Return the console on which calls report progress: standard error."""
    return VisibleConsole(stderr=True)
