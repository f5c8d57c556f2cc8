"""`hanabi-grpo doctor`: look at everything that two terminals need, and say what to do."""

import contextlib
import json
import os
import sys

import typer

from hanabi_grpo.commands.console import make_console, offline_environ
from hanabi_grpo.doctor import Role, report_json, report_lines, resolve_settings, run_checks
from hanabi_grpo.doctor.check import ROLES, Check
from hanabi_grpo.doctor.show import summary_line
from hanabi_grpo.errors import SettingsError


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

    def show(check: Check) -> None:
        for line, whole in report_lines(check):
            console.print(line, soft_wrap=whole)

    # A library that prints something must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        report = (lambda check: None) if as_json else show
        checks = run_checks(loaded, role=chosen, shell=shell, problems=problems, report=report)
    if as_json:
        sys.stdout.write(json.dumps(report_json(checks), indent=2, ensure_ascii=False) + "\n")
    else:
        console.print(summary_line(checks))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _role(text: str) -> Role:
    for role in ROLES:
        if role == text:
            return role
    raise SettingsError(f"--role {text!r}: choose one of {', '.join(ROLES)}.")
