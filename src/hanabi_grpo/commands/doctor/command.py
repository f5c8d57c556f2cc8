"""The command `hanabi-grpo doctor`, and all its checks in the order of the output."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console

from hanabi_grpo.commands.console import give_environ, make_console, print_json
from hanabi_grpo.commands.doctor import (
    budget,
    checkpoints,
    games,
    gpus,
    machine,
    memory,
    model,
    plan,
    server,
    software,
)
from hanabi_grpo.commands.doctor.check import (
    Check,
    Role,
    fail,
    ok,
    print_checks,
    report_json,
    skip,
    summary_line,
)
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings, variables
from hanabi_grpo.settings.base_models import base_models
from hanabi_grpo.settings.names import check_names
from hanabi_grpo.settings.sources import DOTENV

_SHOW_SETTINGS = ".venv/bin/hanabi-grpo settings --markdown   # every variable and its values"
_REPORT_BUG = ".venv/bin/hanabi-grpo doctor --json > doctor.json   # and report it with this file"


class Probe(NamedTuple):
    """A function that makes one or more checks, and the terminals that need them."""

    name: str
    """Name of the check, also used to report an exception of the function."""
    make: Callable[[Context], Check | Iterable[Check] | None]
    """Returns one check, several, or None where there is nothing to check."""
    roles: tuple[Role, ...] = ("server", "trainer")
    bases: Literal["all", "each", "one"] = "all"
    """How a team with several base models is checked: all models at once, each model separately,
    or not at all, because the check's arithmetic covers only one model."""


def settings_checks(context: Context) -> Check:
    """Report which settings were given; invalid settings end the doctor before this check."""
    settings = context.settings
    given = []
    for variable in variables(settings.env):
        if not context.loaded.origins[variable.field].startswith("default"):
            given.append(variable.env)
    defaults = f"{settings.device} defaults, because {settings.device_reason}"
    if not given:
        return ok("settings", defaults)
    return ok("settings", f"given: {', '.join(given)}; everything else: {defaults}")


PROBES = (
    Probe("settings", settings_checks),
    Probe("packages", software.package_checks),
    Probe("torch", software.torch_checks),
    Probe("compiler", software.compiler_checks, ("server",)),
    Probe("gpus", gpus.gpu_checks),
    Probe("dataset", games.dataset_checks, ("trainer",)),
    Probe("batch", games.batch_checks, ("trainer",)),
    Probe("model", model.model_checks, bases="each"),
    Probe("chat template", model.chat_checks, bases="each"),
    Probe("context", games.context_checks, bases="each"),
    Probe("history", games.history_checks, ("trainer",), bases="each"),
    Probe("vocabulary", games.vocabulary_checks, bases="each"),
    Probe("memory", memory.memory_checks),
    Probe("budget", budget.budget_checks, bases="one"),
    Probe("run folder", machine.run_folder_checks, ("trainer",)),
    Probe("checkpoints", checkpoints.checkpoint_checks, ("trainer",)),
    Probe("partner urls", server.partner_url_checks),
    Probe("shared memory", machine.shared_memory_checks),
    Probe("disk", machine.disk_checks, ("trainer",)),
    Probe("port", server.port_checks, ("server",)),
    Probe("server", server.server_checks, ("trainer",)),
    Probe("wandb", software.wandb_checks, ("trainer",)),
)

PLAN_PROBES = (
    Probe("settings", settings_checks),
    Probe("gpus", gpus.gpu_checks),
    Probe("dataset", games.dataset_checks),
    Probe("batch", games.batch_checks),
    Probe("model", model.model_checks, bases="each"),
    Probe("chat template", model.chat_checks, bases="each"),
    Probe("context", games.context_checks, bases="each"),
    Probe("history", games.history_checks, bases="each"),
    Probe("memory", memory.memory_checks),
    Probe("budget", budget.budget_checks, bases="one"),
    Probe("plan", plan.plan_checks, bases="one"),
)
"""The checks of `--as`, which do not depend on this machine."""


def doctor(
    assignments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...", help="Settings for this call, as in the environment."
        ),
    ] = None,
    role: Annotated[Role, typer.Option(help="The terminal to check.")] = "both",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
    as_machine: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NxCARD",
            help="Plan a run on other GPUs, e.g. 8xH100-80GB: whether it fits and how long it "
            "takes.",
        ),
    ] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="With --as: print only the row of docs/hardware.md."),
    ] = False,
) -> None:
    """Check everything that both terminals need and print the fix for each problem.

    Takes seconds, starts nothing and changes nothing. Exits with 1 if a check fails. With --as,
    plans a run on another machine instead and estimates memory, seconds per step and hours.

    Environment: every variable that `hanabi-grpo settings` shows, and CUDA_VISIBLE_DEVICES,
    HTTP_PROXY, ALL_PROXY, NO_PROXY, HF_HUB_OFFLINE, WANDB_API_KEY, WANDB_BASE_URL, NETRC and
    VLLM_CPU_KVCACHE_SPACE.
    """
    given = plan.parse_assignments(assignments or ())
    if markdown and as_json:
        raise SettingsError("--markdown: prints a table row and --json an object; leave one out.")
    if as_machine is not None:
        _plan(as_machine, given, role=role, as_json=as_json, markdown=markdown)
        return
    if markdown:
        raise SettingsError("--markdown: requires --as, e.g. --as 8xH100-80GB.")
    shell = {**os.environ, **given}
    console = None if as_json else make_console()
    loaded, checks = settings_or_problems(environ=shell)
    if loaded is not None and not checks:
        # Set as in both terminals, before a hub library reads the variables.
        give_environ(loaded)
        checks = make_checks(loaded, role=role, shell=shell, console=console)
    elif console is not None:
        print_checks(console, checks)
    _report(console, checks)


def _plan(
    as_machine: str, given: Mapping[str, str], *, role: Role, as_json: bool, markdown: bool
) -> None:
    """Make the checks of a planned machine.

    Raises:
        SettingsError: `--as` names no known machine.
        typer.Exit: A check failed; the exit code is 1.
    """
    planned = plan.parse_machine(as_machine)
    shell = plan.plan_environ(os.environ, planned, given)
    # With --markdown standard output holds only the row.
    console = None if as_json else make_console(aside=markdown)
    loaded, checks = settings_or_problems(environ=shell, device=plan.DEVICE)
    made = None
    if loaded is not None and not checks:
        give_environ(loaded)
        context = Context(loaded=loaded, shell=shell, role=role, planned_gpus=planned)
        checks = check_all(context, PLAN_PROBES, console)
        made = plan.make_plan(context)
    elif console is not None:
        print_checks(console, checks)
    if markdown and made is not None:
        typer.echo(plan.plan_markdown(made))
    _report(console, checks, {"plan": None if made is None else asdict(made)})


def _report(
    console: Console | None, checks: Sequence[Check], more: Mapping[str, Any] | None = None
) -> None:
    """Print the end of a report, or all of it as JSON.

    Args:
        console: Where the checks were printed; None: print JSON.
        checks: The results.
        more: Further keys of the JSON.

    Raises:
        typer.Exit: A check failed; the exit code is 1.
    """
    if console is None:
        print_json({**report_json(checks), **(more or {})}, indent=2)
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
    options: Sequence[str] | None = None,
) -> list[Check]:
    """Make every check that applies to a terminal and print each result at once.

    Args:
        loaded: The settings.
        role: The terminal that is checked.
        shell: Variables of this process, before any library changed them.
        console: Where results are printed; None prints nothing and keeps the output of
            libraries out of standard output, which then holds only JSON.
        probes: The checks to make. One that raises counts as failed, and the next one runs.
        options: The trainer's options for ms-swift; None: unknown.

    Returns:
        All results, in the order of the probes.
    """
    known_options = None if options is None else tuple(options)
    context = Context(loaded=loaded, shell=shell, role=role, options=known_options)
    return check_all(context, probes, console)


def check_all(
    context: Context, probes: Sequence[Probe], console: Console | None = None
) -> list[Check]:
    """Make every check that applies to the terminals of a context, see `make_checks`."""
    role = context.role
    checks = []
    protect_json = contextlib.nullcontext() if console else contextlib.redirect_stdout(sys.stderr)
    with protect_json:
        for probe in probes:
            if role != "both" and role not in probe.roles:
                continue
            for check in _run_probe(probe, context):
                checks.append(check)
                if console is not None:
                    print_checks(console, [check])
    return checks


def _made(probe: Probe, context: Context) -> Iterator[Check]:
    result = probe.make(context)
    if isinstance(result, Check):
        yield result
    elif result is not None:
        yield from result


def _run_probe(probe: Probe, context: Context) -> Iterator[Check]:
    try:
        names = () if probe.bases == "all" else base_models(context.settings)
        if len(names) > 1 and probe.bases == "one":
            each = ", then ".join(f"MODEL={name}" for name in names)
            planned = "doctor --as …" if context.planned_gpus else "doctor"
            yield skip(probe.name, f"estimated for one base model at a time: {planned} {each}")
        elif len(names) > 1:
            for name in names:
                for check in _made(probe, context.with_model(name)):
                    is_named = check.finding.startswith(f"{name}: ")
                    finding = check.finding if is_named else f"{name}: {check.finding}"
                    yield replace(check, finding=finding)
        else:
            yield from _made(probe, context)
    except Exception as error:
        next_step = _SHOW_SETTINGS if isinstance(error, HanabiGrpoError) else _REPORT_BUG
        problem = f"the check itself failed ({type(error).__name__}: {error})"
        yield fail(probe.name, problem, next_step)


def settings_or_problems(
    dotenv: Path = Path(DOTENV),
    *,
    environ: Mapping[str, str] | None = None,
    device: tuple[str, str] | None = None,
) -> tuple[LoadedSettings | None, list[Check]]:
    """Load the settings, or report what is wrong; nothing can be checked without settings.

    Args:
        dotenv: The file `.env`.
        environ: The shell's variables; None: those of this process.
        device: See `load_settings`.

    Returns:
        The settings, or None if they are invalid; and one failed check for each problem, unknown
        names of settings included.
    """
    shell = os.environ if environ is None else environ
    problems = []
    loaded = None
    try:
        loaded = load_settings(shell, dotenv, device=device)
    except SettingsError as error:
        problems += str(error).splitlines()
    try:
        check_names(shell, dotenv)
    except SettingsError as error:
        problems += str(error).splitlines()
    # Both calls may report the same problem.
    distinct = dict.fromkeys(problems)
    return loaded, [fail("settings", problem, _SHOW_SETTINGS) for problem in distinct]
