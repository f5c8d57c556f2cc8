"""The command line: `hanabi-grpo COMMAND`. A command's module is imported when it is called, or for
the list of all.
"""

import gc
import multiprocessing
import os
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from hanabi_grpo import __version__
from hanabi_grpo.errors import HanabiGrpoError

if multiprocessing.parent_process() is not None:
    # vLLM's engine core, which imports the server's main module first: as `processes.importing`
    # does there. The plugin turns it on again.
    gc.disable()

GROUPS = {
    "Train": ("doctor", "serve", "train", "warm-start", "tiny-model", "dataset", "settings"),
    "Play": ("play", "collect"),
    "Measure": ("evaluate", "cross-play", "exploit", "teams", "compare"),
    "Look": ("watch", "view", "report"),
    "Share": ("export", "openenv"),
}
"""Commands by what people want, in the order of --help. Their functions are in the module of their
name.
"""
_PANELS = {name: panel for panel, names in GROUPS.items() for name in names}
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


class Group(TyperGroup):
    """Turns the package's own errors into a message and exit code 2; any other error keeps its
    traceback.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Answer --version, and take -h for --help."""
        # Here and not as an option of each command: also those that pass options on must not start
        # anything.
        if "--version" in args:
            print(f"hanabi-grpo {__version__}")
            raise typer.Exit
        # Only as a word of its own: vLLM has options such as -dph.
        return super().parse_args(ctx, ["--help" if word == "-h" else word for word in args])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error of the package ends it with exit code 2."""
        try:
            return super().invoke(ctx)
        except HanabiGrpoError as error:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, emoji=False)
            console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(2) from error


class _Commands(Group):
    """The commands of `GROUPS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_PANELS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _PANELS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)


def _load(name: str) -> Any:
    """Return one command, made from the module of its name."""
    word = name.replace("-", "_")
    function = getattr(import_module(f"hanabi_grpo.commands.{word}"), word)
    passes = _PASS_ON if name in ("serve", "train") else None
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name, context_settings=passes, rich_help_panel=_PANELS[name])(function)
    return typer.main.get_command(single)


def all_commands() -> dict[str, Any]:
    """Return every command by its name, as click has it."""
    return {name: _load(name) for name in _PANELS}


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    # A rich traceback prints local variables, and with them keys and tokens.
    pretty_exceptions_enable=False,
    help="Train teams of language models with GRPO. Settings are environment variables: "
    "hanabi-grpo settings. "
    "-h and --version work behind every command.",
)


@app.callback()
def _root() -> None:
    """Make `app` a group, whose commands `_Commands` finds."""
    # Before torch is loaded, for every process that a command starts. Threads that spin while they
    # wait make a trainer ten times slower as soon as one of its cores is wanted by somebody else:
    # the server, a test, an editor.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


if __name__ == "__main__":
    app()
