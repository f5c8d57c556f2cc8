"""All checks, in the order in which they are read."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hanabi_grpo.commands.doctor import (
    environment,
    games,
    gpus,
    machine,
    model,
    network,
    server,
    software,
    starts,
)
from hanabi_grpo.commands.doctor.check import Check, Role, fail
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.trackers import tracker_checks
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.settings import LoadedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A function that yields checks, and the terminals that it matters to."""

    name: str
    find: Callable[[Context], Iterable[Check]]
    roles: tuple[Role, ...] = ("server", "trainer")


PROBES: tuple[Probe, ...] = (
    Probe(name="names", find=environment.name_checks),
    Probe(name="packages", find=software.package_checks),
    Probe(name="torch", find=software.torch_checks),
    Probe(name="compiler", find=software.compiler_checks, roles=("server",)),
    Probe(name="gpus", find=gpus.gpu_checks),
    Probe(name="cores", find=machine.core_checks),
    Probe(name="dataset", find=games.dataset_checks, roles=("trainer",)),
    Probe(name="batch", find=games.batch_checks, roles=("trainer",)),
    Probe(name="model", find=model.model_checks),
    Probe(name="chat template", find=model.chat_checks),
    Probe(name="context", find=games.context_checks),
    Probe(name="vocabulary", find=games.vocabulary_checks),
    Probe(name="memory", find=model.memory_checks),
    Probe(name="run folder", find=starts.run_folder_checks, roles=("trainer",)),
    Probe(name="start", find=starts.start_checks, roles=("trainer",)),
    Probe(name="partners", find=starts.partner_checks, roles=("trainer",)),
    Probe(name="shared memory", find=machine.shared_memory_checks),
    Probe(name="disk", find=machine.disk_checks, roles=("trainer",)),
    Probe(name="port", find=network.port_checks, roles=("server",)),
    Probe(name="ports agree", find=network.port_agreement_checks, roles=("both",)),
    Probe(name="server", find=server.server_checks, roles=("trainer",)),
    Probe(name="wandb", find=tracker_checks, roles=("trainer",)),
)


def run_checks(
    loaded: LoadedSettings,
    *,
    role: Role = "both",
    shell: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
    probes: Sequence[Probe] = PROBES,
    report: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Make every check that matters to a terminal; one that raises is a failure and does not stop the others.

    Args:
        loaded: The settings, as far as they could be resolved.
        role: The terminal that this shell is for.
        shell: The shell's variables; None: this process's.
        problems: What the settings were refused for, see `resolve_settings`.
        probes: What to look at.
        report: Called with each check as soon as it is there.
    """
    context = Context(loaded=loaded, shell=dict(os.environ) if shell is None else shell, role=role)

    def settings_probe(context: Context) -> Iterator[Check]:
        return environment.settings_checks(context, problems)

    checks: list[Check] = []
    for probe in (Probe(name="settings", find=settings_probe), *probes):
        if role == "both" or role in probe.roles:
            for check in _timed(probe.name, probe.find, context):
                checks.append(check)
                report(check)
    return checks


def _timed(name: str, find: Callable[[Context], Iterable[Check]], context: Context) -> Iterator[Check]:
    start = time.perf_counter()
    try:
        for check in find(context):
            now = time.perf_counter()
            yield replace(check, seconds=round(now - start, 3))
            start = now
    except Exception as error:
        next_step = ".venv/bin/hanabi-grpo settings" if isinstance(error, HanabiGrpoError) else _REPORT
        failed = fail(name, f"the check itself failed ({type(error).__name__}: {error})", next_step)
        yield replace(failed, seconds=round(time.perf_counter() - start, 3))


_REPORT = ".venv/bin/hanabi-grpo doctor --json > doctor.json   # and report it with this file"
