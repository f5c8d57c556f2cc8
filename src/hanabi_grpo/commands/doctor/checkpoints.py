"""The check of checkpoints of other runs: start, partners, teachers and opponents."""

from hanabi_grpo.client.curves import opponent_places, validation_curves
from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings.teachers import parse_teachers
from hanabi_grpo.tracking.used_checkpoints import check_local

_LIST = "ls -d outputs/*/checkpoint-*   # the checkpoints of runs in outputs/"


def checkpoint_checks(context: Context) -> Check | None:
    """Check that the checkpoints on this machine that the run uses exist and can be read."""
    settings = context.settings
    resume, _ = context.planned
    run_folder = settings.output_dir if resume is None else resume.run_folder
    try:
        parse_teachers(settings)
        opponents = opponent_places(validation_curves(settings))
    except HanabiGrpoError:
        return skip("checkpoints", "needs settings without contradictions, see batch")
    try:
        checked = check_local(
            settings,
            run_folder,
            opponents=opponents,
            is_resumed=resume is not None and resume.checkpoint is not None,
        )
    except SettingsError as error:
        return fail("checkpoints", str(error), _LIST)
    if not checked:
        return None
    return ok("checkpoints", f"complete: {', '.join(checked)}")
