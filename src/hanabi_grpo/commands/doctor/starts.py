"""Folders that only the trainer reads: the run's own, what it goes on from, starts from and plays with."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.commands.console import TRAIN_SCRIPT
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.datasets import num_steps
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.resume import ResumePlan, plan_resume, resume_lines
from hanabi_grpo.runs.run_folder import holder_of, some_of, used_entries
from hanabi_grpo.runs.saved_adapters import SavedAdapters, check_same_base
from hanabi_grpo.settings.partners import Partner, read_pool
from hanabi_grpo.settings.refs import Place
from hanabi_grpo.tracking.used_checkpoints import read_used
from hanabi_grpo.types import player_name

if TYPE_CHECKING:
    from hanabi_grpo.training.model.start_from import Start

_LIST = "ls -d outputs/*/checkpoint-*   # a whole one holds manifest.json"
_LOG_IN = ".venv/bin/wandb login   # for wandb: words; .venv/bin/hf auth login for private hf: words"
_UNKNOWN_STEPS = 1 << 31


def run_folder_checks(context: Context) -> Iterator[Check]:
    """Tell where the run writes and what it goes on from, or why it cannot."""
    settings = context.settings
    fresh = "unset OUTPUT_DIR RESUME   # a new run in a new folder of outputs/"
    try:
        resume = plan_resume(settings)
        place = resume.run_folder if resume is not None else settings.output_dir
        if place is not None and (holder := holder_of(place)):
            look = f".venv/bin/hanabi-grpo watch {place}   # it goes on, leave it alone"
            yield fail("run folder", f"{place}: another trainer works in it ({holder})", f"{fresh}\n{look}")
            return
        if resume is not None:
            steps = num_steps(settings, context.rows) if context.rows else _UNKNOWN_STEPS
            said = "; ".join(line.strip() for line in resume_lines(resume, settings, steps))
            yield ok("run folder", f"{resume.run_folder}; {said}")
            return
    except HanabiGrpoError as error:
        yield fail("run folder", str(error), fresh)
        return
    folder = settings.output_dir
    if folder is None:
        yield ok("run folder", "a new one in outputs/")
    elif folder.exists() and not folder.is_dir():
        yield fail("run folder", f"OUTPUT_DIR={str(folder)!r}: is a file", fresh)
    elif folder.is_dir() and (used := used_entries(folder)):
        finding = f"OUTPUT_DIR={str(folder)!r}: holds another run already ({some_of(used)})"
        yield fail("run folder", finding, f"RESUME=latest bash {TRAIN_SCRIPT}   # goes on with that run\n{fresh}")
    else:
        yield ok("run folder", str(folder))


def start_checks(context: Context) -> Iterator[Check]:
    """Read every adapter that HANABI_START_FROM names, as the trainer would; nothing where it is unset.

    What lies elsewhere is fetched to where the trainer looks for it.
    """
    settings = context.settings
    if not settings.start_from:
        return
    resume = _resume(context)
    if resume is not None and resume.checkpoint is not None:
        yield skip("start", f"HANABI_START_FROM is not read: the run goes on from {resume.checkpoint}")
        return
    # Imported here: it brings PEFT and torch.
    from hanabi_grpo.training.model.start_from import read_start

    try:
        of_run = settings.model_copy(update={"output_dir": _run_folder(resume)})
        starts = read_start(of_run, partial(read_used, fetch=True))
    except SettingsError as error:
        yield fail("start", str(error), _remedy(str(error)))
        return
    facts = _facts(context)
    for start in starts:
        yield _start(context, start, facts)


def partner_checks(context: Context) -> Iterator[Check]:
    """Read every checkpoint that HANABI_PARTNERS names; nothing where it names none."""
    pool, facts = read_pool(context.settings), _facts(context)
    run_folder = _run_folder(_resume(context)) if pool else None
    for partner in pool:
        if partner.place is not None:
            yield _partner(context, partner, partner.place, run_folder, facts)


def _resume(context: Context) -> ResumePlan | None:
    try:
        return plan_resume(context.settings)
    except HanabiGrpoError:
        return None  # the check of the run folder says so


def _remedy(error: str) -> str:
    return _LOG_IN if "wandb:" in error or "hf:" in error else _LIST


def _run_folder(resume: ResumePlan | None) -> Path | None:
    return resume.run_folder if resume is not None and not resume.fork else None


def _start(context: Context, start: "Start", facts: Mapping[str, Any]) -> Check:
    settings, config = context.settings, start.saved.adapters[start.adapter][1]
    for key, env, here in (("r", "LORA_RANK", settings.lora_rank), ("lora_alpha", "LORA_ALPHA", settings.lora_alpha)):
        if config.get(key, here) != here:
            finding = f"HANABI_START_FROM={start.word}: {env} was {config[key]} there and is {here} here"
            return fail("start", finding, f"export {env}={config[key]}")
    said = f"{start.name} from {start.adapter} of {start.folder}, step {start.saved.step}"
    return _with_base("start", f"HANABI_START_FROM={start.word}", said, start.folder, start.saved, facts)


def _partner(
    context: Context, partner: Partner, place: Place, run_folder: Path | None, facts: Mapping[str, Any]
) -> Check:
    named = f"HANABI_PARTNERS={partner.word}"
    try:
        folder, saved = read_used(place, run_folder, fetch=True)
    except (OSError, SettingsError) as error:
        return fail("partners", f"{named}: {error}", _remedy(str(error)))
    seats = range(context.settings.players) if partner.seat is None else (partner.seat,)
    try:
        for seat in seats:
            saved.choose(player_name(seat), partner.adapter)
    except SettingsError as error:
        way = f"HANABI_PARTNERS={folder}:{next(iter(saved.adapters))}   # chooses one of its adapters"
        return fail("partners", f"{named}: {error}", f"export {way}")
    said = f"{partner.word}: {folder}, step {saved.step}, adapters {', '.join(saved.adapters)}"
    return _with_base("partners", named, said, folder, saved, facts)


def _with_base(name: str, named: str, said: str, folder: Path, saved: SavedAdapters, facts: Mapping[str, Any]) -> Check:
    try:
        check_same_base(folder, saved, facts)
    except SettingsError as error:
        return fail(name, f"{named}: {error}", _LIST)
    if "model_fingerprint" not in saved.facts:
        return warn(name, f"{said}; nothing says on which base model it was trained", _LIST)
    return ok(name, said)


def _facts(context: Context) -> dict[str, Any]:
    # As the server would tell them, as far as this machine knows.
    return {"model_fingerprint": model_fingerprint(context.model_folder)} if context.model_folder else {}
