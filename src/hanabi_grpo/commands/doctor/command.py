"""`hanabi-grpo doctor`: its checks, in the order in which they are read."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple, get_args

import typer
from rich.console import Console

from hanabi_grpo.commands.console import make_console, offline_environ, print_json
from hanabi_grpo.commands.doctor import environment, games, gpus, machine, model, network, server, software, starts
from hanabi_grpo.commands.doctor.check import Check, Role, fail, print_checks, report_json, summary_line
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.trackers import tracker_checks
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings import LoadedSettings

_REPORT = ".venv/bin/hanabi-grpo doctor --json > doctor.json   # and report it with this file"


class Probe(NamedTuple):
    """A function that yields checks, and the terminals that it matters to."""

    name: str
    find: Callable[[Context], Iterable[Check]]
    roles: tuple[Role, ...] = ("server", "trainer")


PROBES = (
    Probe("settings", environment.settings_checks),
    Probe("packages", software.package_checks),
    Probe("torch", software.torch_checks),
    Probe("compiler", software.compiler_checks, ("server",)),
    Probe("gpus", gpus.gpu_checks),
    Probe("cores", machine.core_checks),
    Probe("dataset", games.dataset_checks, ("trainer",)),
    Probe("batch", games.batch_checks, ("trainer",)),
    Probe("model", model.model_checks),
    Probe("chat template", model.chat_checks),
    Probe("context", games.context_checks),
    Probe("vocabulary", games.vocabulary_checks),
    Probe("memory", model.memory_checks),
    Probe("run folder", starts.run_folder_checks, ("trainer",)),
    Probe("start", starts.start_checks, ("trainer",)),
    Probe("partners", starts.partner_checks, ("trainer",)),
    Probe("shared memory", machine.shared_memory_checks),
    Probe("disk", machine.disk_checks, ("trainer",)),
    Probe("port", network.port_checks, ("server",)),
    Probe("server", server.server_checks, ("trainer",)),
    Probe("wandb", tracker_checks, ("trainer",)),
)


def doctor(
    role: Annotated[str, typer.Option(help="The terminal that this shell is for: server, trainer or both.")] = "both",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Look at everything that both terminals need, and say what to do; exits with 1 when something fails.

    Environment: every variable that `hanabi-grpo settings` shows, and CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS,
    HTTP_PROXY, ALL_PROXY, NO_PROXY, HF_HUB_OFFLINE, WANDB_API_KEY, WANDB_BASE_URL, NETRC and VLLM_CPU_KVCACHE_SPACE.
    """
    chosen = next((one for one in get_args(Role) if one == role), None)
    if chosen is None:
        raise SettingsError(f"--role {role!r}: choose one of {', '.join(get_args(Role))}.")
    shell = dict(os.environ)
    console = None if as_json else make_console()
    loaded, checks = environment.settings_or_problems()
    if loaded is not None and not checks:
        # As both terminals do it, before a hub library reads them.
        for name, value in {**loaded.dotenv_environ, **offline_environ(loaded.settings)}.items():
            os.environ.setdefault(name, value)
        checks = make_checks(loaded, role=chosen, shell=shell, console=console)
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
    """Make every check that matters to a terminal; one that raises is a failure and does not stop the others.

    Args:
        loaded: The settings.
        role: The terminal that this shell is for.
        shell: The shell's variables.
        console: Where each check is printed as soon as it is there; None: nowhere.
        probes: What to look at.
    """
    context = Context(loaded=loaded, shell=shell, role=role)
    checks = []
    # A library that prints something must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr) if console is None else contextlib.nullcontext():
        for probe in probes:
            for check in _timed(probe, context) if role == "both" or role in probe.roles else ():
                checks.append(check)
                if console is not None:
                    print_checks(console, [check])
    return checks


def _timed(probe: Probe, context: Context) -> Iterator[Check]:
    start = time.perf_counter()
    try:
        for check in probe.find(context):
            now = time.perf_counter()
            yield replace(check, seconds=round(now - start, 3))
            start = now
    except Exception as error:
        next_step = ".venv/bin/hanabi-grpo settings" if isinstance(error, HanabiGrpoError) else _REPORT
        failed = fail(probe.name, f"the check itself failed ({type(error).__name__}: {error})", next_step)
        yield replace(failed, seconds=round(time.perf_counter() - start, 3))
