"""The run folder: whose it is, and what a run goes on from."""

from hanabi_grpo.commands.console import TRAIN_SCRIPT
from hanabi_grpo.commands.doctor.check import Check, fail, ok
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import num_steps
from hanabi_grpo.runs.resume import resume_lines
from hanabi_grpo.runs.run_folder import holder_of, some_of, used_entries

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
