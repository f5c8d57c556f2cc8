"""`--print-config` and `--dry-run` of both terminals: show what would start, and start nothing."""

import contextlib
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

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
from hanabi_grpo.settings.show import settings_yaml

PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Show every setting and its origin; start nothing.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check everything and show what would start; start nothing. Exits with 1 if a check "
        "fails.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="With --print-config or --dry-run: print one JSON object.")
]
AsYaml = Annotated[
    bool,
    typer.Option("--yaml", help="With --print-config: print a profile for HANABI_PROFILE."),
]
_MASKED = "********"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """What a terminal would start."""

    command: list[str]
    """Program and arguments."""
    environ: dict[str, str]
    """Variables that would be set for it; keys are masked."""
    url: str
    """Where the server would listen, or where the trainer would wait for it."""


def show_start(
    terminal: Terminal,
    extra_args: list[str],
    *,
    print_config: bool,
    dry_run: bool,
    as_json: bool,
    as_yaml: bool = False,
) -> None:
    """Do what --print-config or --dry-run requests.

    Args:
        terminal: The terminal whose start is shown.
        extra_args: Options that would be passed through to vLLM or ms-swift.
        print_config: Show the settings.
        dry_run: Run the doctor's checks and show what would be started.
        as_json: Print one JSON object.
        as_yaml: Print a profile.

    Raises:
        SettingsError: Not exactly one of `print_config` and `dry_run` is set, or `as_yaml` without
            the former or beside `as_json`.
        typer.Exit: A check failed; the exit code is 1.
    """
    if as_yaml and (as_json or not print_config):
        raise SettingsError("--yaml: prints the settings as a profile; use --print-config --yaml.")
    if print_config == dry_run:
        raise SettingsError("give either --print-config or --dry-run; --json works with both.")
    if print_config and as_yaml:
        print(settings_yaml(load_settings()), end="")
        return
    if print_config:
        show_settings(as_json=as_json)
        return
    # Imported here: a real start does not need it.
    from hanabi_grpo.commands.doctor.check import report_json, summary_line
    from hanabi_grpo.commands.doctor.command import make_checks

    console = make_console()
    shell = dict(os.environ)
    if as_json:
        loaded = load_settings()
        set_environ(loaded, terminal)
    else:
        loaded = announce(console, terminal)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        shell["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    checks = make_checks(
        loaded,
        role=terminal,
        shell=shell,
        console=None if as_json else console,
        options=extra_args if terminal == "trainer" else None,
    )
    start = None
    # If it cannot be planned, a check has reported why.
    with contextlib.suppress(HanabiGrpoError):
        start = _plan_start(terminal, loaded, extra_args)
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        document = {
            "settings": settings_json(loaded),
            "doctor": report_json(checks),
            "would_start": None if start is None else asdict(start),
        }
        print_json(document, indent=2)
    else:
        console.print(summary_line(checks))
        sayer(console)(_describe(terminal, loaded, start, failed=failed))
    if failed:
        raise typer.Exit(1)


def _describe(
    terminal: Terminal, loaded: LoadedSettings, start: PlannedStart | None, *, failed: bool
) -> str:
    """Return what a terminal would do, and the command that it would run.

    Args:
        terminal: The terminal.
        loaded: Its settings.
        start: What it would start; None: it cannot start.
        failed: A check failed.
    """
    if start is None:
        return "dry run: nothing was started. A start would fail; see the failed checks above."
    assignments = [f"{name}={shlex.quote(value)}" for name, value in start.environ.items()]
    command = " ".join([*assignments, shlex.join(start.command)])
    if terminal == "server":
        would = f"start a server that listens on {start.url}"
    else:
        timeout = f"{loaded.settings.server_timeout:g} s"
        would = f"wait up to {timeout} for the server at {start.url}, then start the trainer"
    condition = "Without --dry-run"
    if failed:
        condition = "Once the failed checks above pass, and without --dry-run"
    return f"dry run: nothing was started. {condition}, this command would {would}:\n    {command}"


def _plan_start(terminal: Terminal, loaded: LoadedSettings, extra_args: list[str]) -> PlannedStart:
    settings = loaded.settings
    environ = {}
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = gpus
    environ |= offline_environ(settings)
    if terminal == "server":
        return PlannedStart(
            command=[sys.executable, "-m", "hanabi_grpo.cli", "serve", *extra_args],
            environ=environ,
            url=f"http://{settings.host}:{settings.port}",
        )
    resume = plan_resume(settings)
    if resume is not None:
        run_folder = resume.run_folder
    elif settings.output_dir is not None:
        run_folder = settings.output_dir
    else:
        run_folder = Path("outputs") / run_folder_name(settings, datetime.now())
    if settings.api_key:
        environ["HANABI_API_KEY"] = _MASKED
    urls = [server_url(server) for server in each_server(settings)]
    return PlannedStart(
        command=trainer_argv(settings, run_folder / "settings.json", extra_args, read_nodes()),
        environ=environ,
        url=", ".join(urls),
    )
