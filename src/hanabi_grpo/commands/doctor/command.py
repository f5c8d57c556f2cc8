"""`hanabi-grpo doctor`: look at everything that two terminals need, and say what to do."""

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence

import typer
from rich.console import Console

from hanabi_grpo.commands.console import make_console, offline_environ
from hanabi_grpo.commands.doctor import Role, report_json, report_lines, resolve_settings, run_checks
from hanabi_grpo.commands.doctor.check import ROLES, Check
from hanabi_grpo.commands.doctor.show import summary_line
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import LoadedSettings


def doctor(role: str, *, as_json: bool) -> None:
    """Make the checks and print them, each as soon as it is there.

    Args:
        role: server, trainer or both.
        as_json: Print one JSON object instead of lines.

    Raises:
        SettingsError: `role` is none of the three.
        typer.Exit: With 1, when a check failed.
    """
    chosen = _role(role)
    shell = dict(os.environ)
    loaded, problems = resolve_settings(shell)
    # As both terminals do it, before a hub library reads them.
    for name, value in {**loaded.dotenv_environ, **offline_environ(loaded.settings)}.items():
        os.environ.setdefault(name, value)
    console = make_console()
    checks = make_checks(loaded, role=chosen, shell=shell, problems=problems, console=None if as_json else console)
    if as_json:
        sys.stdout.write(json.dumps(report_json(checks), indent=2, ensure_ascii=False) + "\n")
    else:
        console.print(summary_line(checks))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def make_checks(
    loaded: LoadedSettings,
    *,
    role: Role,
    shell: Mapping[str, str],
    console: Console | None,
    problems: Sequence[str] = (),
) -> list[Check]:
    """Make the checks of a terminal and print each as soon as it is there; without a console none is printed."""

    def show(check: Check) -> None:
        if console is not None:
            for line, whole in report_lines(check):
                console.print(line, soft_wrap=whole)

    # A library that prints something must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr) if console is None else contextlib.nullcontext():
        return run_checks(loaded, role=role, shell=shell, problems=problems, report=show)


def _role(text: str) -> Role:
    for role in ROLES:
        if role == text:
            return role
    raise SettingsError(f"--role {text!r}: choose one of {', '.join(ROLES)}.")
