"""The command line: `hanabi-grpo COMMAND`.

The module of a command is imported only when the command is called or all commands are listed.
"""

import functools
import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from hanabi_grpo import __version__
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.processes import hide_misfits


def _prepare_spawned() -> None:
    """Prepare a process that Python spawned if it is vLLM's engine core.

    The engine core imports the server's main module first. Garbage collection stays off during
    imports, as in `processes.importing`; our vLLM plugin turns it on again.
    """
    from hanabi_grpo.server import vllm_log
    from hanabi_grpo.server.plugin import PLUGIN_NAME

    if os.environ.get("VLLM_PLUGINS") == PLUGIN_NAME:
        gc.disable()
        vllm_log.configure_early()


if "--multiprocessing-fork" in sys.orig_argv:
    _prepare_spawned()
hide_misfits()

GROUPS = {
    "Train": (
        "demo",
        "doctor",
        "serve",
        "train",
        "warm-start",
        "tiny-model",
        "dataset",
        "settings",
    ),
    "Play": ("play", "collect", "import-hanab-live"),
    "Measure": (
        "evaluate",
        "cross-play",
        "adhoc",
        "beliefs",
        "exploit",
        "teams",
        "compare",
        "digest",
    ),
    "Inspect": ("watch", "view", "report"),
    "Share": ("export", "openenv"),
}
"""Commands by purpose, in the order of --help.

The function of a command is in the module of the same name.
"""
_PANELS = {name: panel for panel, names in GROUPS.items() for name in names}
"""The group of every command."""
_CHECKED_HERE = (
    "warm-start",
    "tiny-model",
    "dataset",
    "settings",
    "play",
    "collect",
    "evaluate",
    "cross-play",
    "adhoc",
    "beliefs",
    "exploit",
    "teams",
)
"""Commands that read settings, and refuse misspelled names of them before they begin.

The demo, serve, train and the doctor do so themselves; the others read finished runs and files.
"""
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of commands that pass unknown options through to vLLM or ms-swift."""
_TAKE_EXTRA_OPTIONS = ("serve", "train")
_SET = "--set"
"""Option of every command: a setting that overrides the environment."""
_REFUSED = 2
"""Exit code of a command that ends with an error of this package."""


def _ended(error: HanabiGrpoError) -> typer.Exit:
    """Print an error of this package and return the exception that ends the command."""
    from hanabi_grpo.terminal import VisibleConsole

    console = VisibleConsole(stderr=True)
    console.print(f"error: {error}", style="red", soft_wrap=True)
    return typer.Exit(_REFUSED)


class Group(TyperGroup):
    """Turns errors of this package into a message and exit code 2.

    Any other error keeps its traceback.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Handle --version, and accept -h for --help."""
        # Not an option of each command: the commands that pass options on must not start anything.
        if "--version" in args:
            print(f"hanabi-grpo {__version__}")
            raise typer.Exit
        # Only as a separate argument: vLLM has options such as -dph.
        expanded = ["--help" if arg == "-h" else arg for arg in args]
        return super().parse_args(ctx, expanded)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error of this package ends it with exit code 2."""
        try:
            return super().invoke(ctx)
        except HanabiGrpoError as error:
            raise _ended(error) from error


class _Commands(Group):
    """The commands of `GROUPS`, each imported on first use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Apply and remove --set NAME=VALUE, wherever it is among a command's arguments."""
        if not any(word.startswith(_SET) for word in args):
            return super().parse_args(ctx, args)
        from hanabi_grpo.settings.sources import set_on_command_line, split_assignments

        assignments, rest = split_assignments(args)
        environ = dict(os.environ)
        try:
            set_on_command_line(assignments, environ)
        except HanabiGrpoError as error:
            raise _ended(error) from error
        os.environ.update(environ)
        return super().parse_args(ctx, rest)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_PANELS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _PANELS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)


def _load(name: str) -> Any:
    """Return one command, built from the module of the same name."""
    identifier = name.replace("-", "_")
    module = import_module(f"hanabi_grpo.commands.{identifier}")
    function = getattr(module, identifier)
    if name in _CHECKED_HERE:
        function = _checking_names(function)
    context_settings = _PASS_ON if name in _TAKE_EXTRA_OPTIONS else None
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    register = single.command(
        name, context_settings=context_settings, rich_help_panel=_PANELS[name]
    )
    register(function)
    return typer.main.get_command(single)


def _checking_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command's function that refuses misspelled names of settings first."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        from hanabi_grpo.settings.names import check_names

        check_names()
        return function(*args, **options)

    return checked


def all_commands() -> dict[str, Any]:
    """Return every click command by its name."""
    return {name: _load(name) for name in _PANELS}


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    # A rich traceback prints local variables, and with them keys and tokens.
    pretty_exceptions_enable=False,
    help="Train teams of language models with GRPO. All settings are environment variables; "
    "`hanabi-grpo settings` lists them. Every command accepts -h, --version and --set NAME=VALUE, "
    "which overrides the environment.",
)


@app.callback()
def _root() -> None:
    """Make `app` a group, whose commands `_Commands` finds."""
    # Set before torch is loaded, for every process that a command starts. Threads that spin while
    # they wait make a trainer ten times slower as soon as another program (the server, a test, an
    # editor) needs one of its cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


if __name__ == "__main__":
    app()
