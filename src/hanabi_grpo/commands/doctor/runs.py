"""Folders that only the trainer reads: the run's own, what it goes on from, starts from and plays with."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hanabi_grpo.commands.console import TRAIN_SCRIPT
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import num_steps
from hanabi_grpo.runs.resume import resume_lines
from hanabi_grpo.runs.run_folder import holder_of, some_of, used_entries
from hanabi_grpo.settings.partners import read_pool
from hanabi_grpo.tracking.used_checkpoints import read_used
from hanabi_grpo.types import player_name

_LIST = "ls -d outputs/*/checkpoint-*   # a whole one holds manifest.json"
_LOG_IN = ".venv/bin/wandb login   # for wandb: words; .venv/bin/hf auth login for private hf: words"
_UNKNOWN_STEPS = 1 << 31


def run_folder_checks(context: Context) -> Check:
    """Tell where the run writes and what it goes on from, or why it cannot."""
    settings, (resume, problem) = context.settings, context.planned
    fresh = "unset OUTPUT_DIR RESUME   # a new run in a new folder of outputs/"
    folder = resume.run_folder if resume is not None else settings.output_dir
    said = ""
    if resume is not None:
        try:
            steps = num_steps(settings, context.rows) if context.rows else _UNKNOWN_STEPS
            said = "; ".join(line.strip() for line in resume_lines(resume, settings, steps))
        except SettingsError as error:
            problem = str(error)
    if problem:
        return fail("run folder", problem, fresh)
    if folder is None:
        return ok("run folder", "a new one in outputs/")
    if holder := holder_of(folder):
        look = f".venv/bin/hanabi-grpo watch {folder}   # it goes on, leave it alone"
        return fail("run folder", f"{folder}: another trainer works in it ({holder})", f"{fresh}\n{look}")
    if resume is not None:
        return ok("run folder", f"{folder}; {said}")
    if folder.is_file():
        return fail("run folder", f"OUTPUT_DIR={str(folder)!r}: is a file", fresh)
    if folder.is_dir() and (used := used_entries(folder)):
        finding = f"OUTPUT_DIR={str(folder)!r}: holds another run already ({some_of(used)})"
        return fail("run folder", finding, f"RESUME=latest bash {TRAIN_SCRIPT}   # goes on with that run\n{fresh}")
    return ok("run folder", str(folder))


def start_checks(context: Context) -> Iterator[Check]:
    """Read every adapter that HANABI_START_FROM names, as the trainer would; nothing where it is unset.

    What lies elsewhere is fetched to where the trainer looks for it.
    """
    settings, resume = context.settings, context.resume
    if not settings.start_from:
        return
    if resume is not None and resume.checkpoint is not None:
        yield skip("start", f"HANABI_START_FROM is not read: the run goes on from {resume.checkpoint}")
        return
    # Imported here: it brings PEFT and torch.
    from hanabi_grpo.training.model.start_from import read_start

    try:
        of_run = settings.model_copy(update={"output_dir": _run_folder(context)})
        starts = read_start(of_run, partial(read_used, fetch=True))
    except SettingsError as error:
        yield fail("start", str(error), _remedy(str(error)))
        return
    for start in starts:
        yield ok("start", f"{start.name} from {start.adapter} of {start.folder}, step {start.saved.step}")


def partner_checks(context: Context) -> Iterator[Check]:
    """Read every checkpoint that HANABI_PARTNERS names; nothing where it names none."""
    for partner in read_pool(context.settings):
        if partner.place is None:
            continue
        try:
            folder, saved = read_used(partner.place, _run_folder(context), fetch=True)
            for seat in range(context.settings.players) if partner.seat is None else (partner.seat,):
                saved.choose(player_name(seat), partner.adapter)
        except (OSError, SettingsError) as error:
            yield fail("partners", f"HANABI_PARTNERS={partner.word}: {error}", _remedy(str(error)))
        else:
            said = f"{partner.word}: {folder}, step {saved.step}, adapters {', '.join(saved.adapters)}"
            yield ok("partners", said)


def _run_folder(context: Context) -> Path | None:
    return context.resume.run_folder if context.resume is not None and not context.resume.fork else None


def _remedy(error: str) -> str:
    return _LOG_IN if "wandb:" in error or "hf:" in error else _LIST
