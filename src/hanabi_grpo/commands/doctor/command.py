"""`hanabi-grpo doctor`: its checks, in the order in which they are read."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from hanabi_grpo.commands.console import give_environ, make_console, print_json
from hanabi_grpo.commands.doctor import budget, games, gpus, machine, model, server, software
from hanabi_grpo.commands.doctor.check import (
    Check,
    Role,
    fail,
    ok,
    print_checks,
    report_json,
    summary_line,
)
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings, variables
from hanabi_grpo.settings.names import check_names
from hanabi_grpo.settings.sources import DOTENV

_SETTINGS = ".venv/bin/hanabi-grpo settings --markdown   # every variable, and what is allowed"
_REPORT = ".venv/bin/hanabi-grpo doctor --json > doctor.json   # and report it with this file"


class Probe(NamedTuple):
    """A function that returns a check, several, or none that matters, and the terminals that it is
    for.
    """

    name: str
    find: Callable[[Context], Check | Iterable[Check] | None]
    roles: tuple[Role, ...] = ("server", "trainer")


def settings_checks(context: Context) -> Check:
    """Tell what was given; wrong settings end the doctor before."""
    origins, settings = context.loaded.origins, context.settings
    given = [
        item.env
        for item in variables(settings.env)
        if not origins[item.field].startswith("default")
    ]
    device = f"{settings.device} defaults, because {settings.device_reason}"
    return ok("settings", f"{', '.join(given)} given, else {device}" if given else device)


PROBES = (
    Probe("settings", settings_checks),
    Probe("packages", software.package_checks),
    Probe("torch", software.torch_checks),
    Probe("compiler", software.compiler_checks, ("server",)),
    Probe("gpus", gpus.gpu_checks),
    Probe("dataset", games.dataset_checks, ("trainer",)),
    Probe("batch", games.batch_checks, ("trainer",)),
    Probe("model", model.model_checks),
    Probe("chat template", model.chat_checks),
    Probe("context", games.context_checks),
    Probe("history", games.history_checks, ("trainer",)),
    Probe("vocabulary", games.vocabulary_checks),
    Probe("memory", model.memory_checks),
    Probe("budget", budget.budget_checks),
    Probe("run folder", machine.run_folder_checks, ("trainer",)),
    Probe("partner urls", server.partner_url_checks),
    Probe("shared memory", machine.shared_memory_checks),
    Probe("disk", machine.disk_checks, ("trainer",)),
    Probe("port", server.port_checks, ("server",)),
    Probe("server", server.server_checks, ("trainer",)),
    Probe("wandb", software.wandb_checks, ("trainer",)),
)


def doctor(
    role: Annotated[Role, typer.Option(help="The terminal that this shell is for.")] = "both",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of lines.")
    ] = False,
) -> None:
    """Look at everything that both terminals need, and say what to do; exits with 1 when something
    fails.

    Environment: every variable that `hanabi-grpo settings` shows, and CUDA_VISIBLE_DEVICES,
    HTTP_PROXY,
    ALL_PROXY, NO_PROXY, HF_HUB_OFFLINE, WANDB_API_KEY, WANDB_BASE_URL, NETRC and
    VLLM_CPU_KVCACHE_SPACE."""
    shell = dict(os.environ)
    console = None if as_json else make_console()
    loaded, checks = settings_or_problems()
    if loaded is not None and not checks:
        # As both terminals do it, before a hub library reads them.
        give_environ(loaded)
        checks = make_checks(loaded, role=role, shell=shell, console=console)
    elif console is not None:
        print_checks(console, checks)
    if console is None:
        print_json(report_json(checks), indent=2)
    else:
        console.print(summary_line(checks))
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def make_checks(
    loaded: LoadedSettings,
    *,
    role: Role = "both",
    shell: Mapping[str, str],
    console: Console | None = None,
    probes: Sequence[Probe] = PROBES,
) -> list[Check]:
    """Make every check that matters to a terminal, and print each as soon as it is there; one that
    raises fails.
    """
    context = Context(loaded=loaded, shell=shell, role=role)
    checks = []
    # A library that prints something must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr) if console is None else contextlib.nullcontext():
        for probe in probes:
            for check in _found(probe, context) if role == "both" or role in probe.roles else ():
                checks.append(check)
                if console is not None:
                    print_checks(console, [check])
    return checks


def _found(probe: Probe, context: Context) -> Iterator[Check]:
    try:
        found = probe.find(context)
        yield from [found] if isinstance(found, Check) else found or ()
    except Exception as error:
        next_step = _SETTINGS if isinstance(error, HanabiGrpoError) else _REPORT
        yield fail(
            probe.name, f"the check itself failed ({type(error).__name__}: {error})", next_step
        )


def settings_or_problems(dotenv: Path = Path(DOTENV)) -> tuple[LoadedSettings | None, list[Check]]:
    """Return the settings, or what is wrong with them: without settings nothing else can be looked
    at.
    """
    problems: dict[str, None] = {}
    loaded = None
    try:
        loaded = load_settings(os.environ, dotenv)
    except SettingsError as error:
        problems |= dict.fromkeys(str(error).splitlines())
    try:
        check_names(os.environ, dotenv)
    except SettingsError as error:
        problems |= dict.fromkeys(str(error).splitlines())
    return loaded, [fail("settings", line, _SETTINGS) for line in problems]
