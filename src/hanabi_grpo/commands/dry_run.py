"""`--print-config` and `--dry-run` of both terminals: what would be started, with which settings;
nothing is.
"""

import contextlib
import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from hanabi_grpo.client.fleet import each_server, server_url
from hanabi_grpo.commands.console import (
    announce,
    make_console,
    offline_environ,
    print_json,
    sayer,
    set_environ,
    show_settings,
)
from hanabi_grpo.commands.nodes import read_nodes, trainer_argv
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import run_folder_name
from hanabi_grpo.settings import LoadedSettings, load_settings, settings_json
from hanabi_grpo.settings.gpus import Terminal

PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Show every setting and its origin; start nothing.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check everything and show what would start; start nothing. Exits with 1 when a "
        "check fails.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, with one of the other two.")]


def look(
    terminal: Terminal, extra_args: list[str], *, print_config: bool, dry_run: bool, as_json: bool
) -> None:
    """Do what --print-config or --dry-run of a terminal asks for; `extra_args` would be handed on
    and are shown.
    """
    if print_config == dry_run:
        raise SettingsError("give one of --print-config and --dry-run; --json is for either.")
    if print_config:
        show_settings(as_json=as_json)
        return
    # Imported here: a start needs none of it.
    from hanabi_grpo.commands.doctor.check import report_json, summary_line
    from hanabi_grpo.commands.doctor.command import make_checks

    console, shell = make_console(), dict(os.environ)
    if as_json:
        loaded = load_settings()
        set_environ(loaded, terminal)
    else:
        loaded = announce(console, terminal)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    shell |= {"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {}
    checks = make_checks(loaded, role=terminal, shell=shell, console=None if as_json else console)
    plan = None
    with contextlib.suppress(HanabiGrpoError):  # a check has said why
        plan = _plan(terminal, loaded, extra_args)
    if as_json:
        print_json(
            {"settings": settings_json(loaded), "doctor": report_json(checks), "would_start": plan},
            indent=2,
        )
    else:
        console.print(summary_line(checks))
        lines = ["dry run: nothing was started, and nothing could be: see what failed above."]
        if plan is not None:
            words = [f"{name}={shlex.quote(value)}" for name, value in plan["environ"].items()]
            waits = f"after waiting up to {loaded.settings.server_timeout:g} s for the server at "
            lines = [
                "dry run: nothing was started. Without --dry-run this would be:",
                f"    {' '.join([*words, shlex.join(plan['command'])])}",
                f"    {'listening on ' if terminal == 'server' else waits}{plan['url']}",
            ]
        sayer(console)("\n".join(lines))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _plan(terminal: Terminal, loaded: LoadedSettings, extra_args: list[str]) -> dict[str, Any]:
    """Return {"command": [word, …], "environ": {name: value}, "url": listened on or waited for};
    keys are masked.
    """
    settings, gpus = loaded.settings, os.environ.get("CUDA_VISIBLE_DEVICES")
    environ = {**({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}), **offline_environ(settings)}
    if terminal == "server":
        command = [sys.executable, "-m", "hanabi_grpo.cli", "serve", *extra_args]
        return {
            "command": command,
            "environ": environ,
            "url": f"http://{settings.host}:{settings.port}",
        }
    resume = plan_resume(settings)
    new = settings.output_dir or Path("outputs") / run_folder_name(settings, datetime.now())
    run_folder = resume.run_folder if resume else new
    environ |= {"HANABI_API_KEY": "********"} if settings.api_key else {}
    command = trainer_argv(settings, run_folder / "settings.json", extra_args, read_nodes())
    return {
        "command": command,
        "environ": environ,
        "url": ", ".join(map(server_url, each_server(settings))),
    }
