"""`--print-config` and `--dry-run` of both terminals: what would be started, with which settings; nothing is."""

import contextlib
import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from hanabi_grpo.commands.console import (
    SECTIONS,
    announce,
    make_console,
    offline_environ,
    print_json,
    sayer,
    set_environ,
)
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings, settings_json, settings_table
from hanabi_grpo.settings.gpus import Terminal

PrintConfig = Annotated[bool, typer.Option("--print-config", help="Show every setting and its origin; start nothing.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check everything and show what would start; start nothing. Exits with 1 when a check fails."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, with one of the other two.")]


def look(terminal: Terminal, extra_args: list[str], *, print_config: bool, dry_run: bool, as_json: bool) -> None:
    """Do what --print-config or --dry-run of a terminal asks for; `extra_args` would be handed on and are shown.

    Raises:
        SettingsError: Not exactly one of the two, or settings that are refused.
        typer.Exit: With 1, when a check of the dry run failed.
    """
    if print_config == dry_run:
        raise SettingsError(
            "choose one of --print-config and --dry-run; the latter prints settings too."
            if print_config
            else "--json is for --print-config and --dry-run."
        )
    if dry_run:
        _dry_run(terminal, extra_args, as_json=as_json)
    elif as_json:
        print_json(settings_json(load_settings()), indent=2)
    else:
        make_console().print(settings_table(load_settings()))


def launch_plan(terminal: Terminal, loaded: LoadedSettings, extra_args: list[str]) -> dict[str, Any]:
    """Return what would be started, ready for JSON; keys are masked.

    Returns:
        {"command": [word, …], "environ": {name: value}, "gpus": str or None, "url": where the server listens, or which
        servers the trainer waits for}.

    Raises:
        HanabiGrpoError: RESUME cannot be followed.
    """
    settings = loaded.settings
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") or None
    environ = {**({"CUDA_VISIBLE_DEVICES": chosen} if chosen else {}), **offline_environ(settings)}
    if terminal == "server":
        command = [sys.executable, "-m", "hanabi_grpo.cli", "serve", *extra_args]
        url = f"http://{settings.host}:{settings.port}"
    else:
        from hanabi_grpo.client.fleet import each_server, server_url
        from hanabi_grpo.commands.nodes import read_nodes, trainer_argv
        from hanabi_grpo.runs.resume import plan_resume
        from hanabi_grpo.runs.run_folder import run_folder_name

        resume = plan_resume(settings)
        new = settings.output_dir or Path("outputs") / run_folder_name(settings, datetime.now())
        run_folder = resume.run_folder if resume else new
        environ |= {"HANABI_API_KEY": "********"} if settings.api_key else {}
        command = trainer_argv(settings, run_folder / "settings.json", extra_args, read_nodes())
        url = ", ".join(server_url(one) for one in each_server(settings))
    return {"command": command, "environ": environ, "gpus": chosen, "url": url}


def _dry_run(terminal: Terminal, extra_args: list[str], *, as_json: bool) -> None:
    from hanabi_grpo.commands.doctor.check import report_json, summary_line
    from hanabi_grpo.commands.doctor.command import make_checks

    console, shell = make_console(), dict(os.environ)
    if as_json:
        loaded = load_settings()
        set_environ(loaded, terminal)
    else:
        loaded = announce(console, SECTIONS[terminal], terminal)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        shell["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    checks = make_checks(loaded, role=terminal, shell=shell, console=None if as_json else console)
    plan = None
    with contextlib.suppress(HanabiGrpoError):  # a check has said why
        plan = launch_plan(terminal, loaded, extra_args)
    if as_json:
        print_json({"settings": settings_json(loaded), "doctor": report_json(checks), "would_start": plan}, indent=2)
    else:
        console.print(summary_line(checks))
        if plan is None:
            lines = ["dry run: nothing was started, and nothing could be: see what failed above."]
        else:
            words = [f"{name}={shlex.quote(value)}" for name, value in plan["environ"].items()]
            waits = f"up to {loaded.settings.server_timeout:g} s for the server at "
            lines = [
                "dry run: nothing was started. Without --dry-run this would be:",
                f"    {' '.join([*words, shlex.join(plan['command'])])}",
                f"    GPUs: {plan['gpus'] or 'all that CUDA shows, none without CUDA'}",
                f"    {'listening on ' if terminal == 'server' else 'after waiting ' + waits}{plan['url']}",
            ]
        sayer(console)("\n".join(lines))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)
