"""Who sends a run folder to W&B: the mirror beside a trainer, and `hanabi-grpo upload` afterwards.

The mirror is a process of its own, `python -m hanabi_grpo.commands.mirror RUN STEP`. Its standard input is the
trainer's life: a line with the exit code when training ended, or an end without a line when the trainer was killed. Its
standard output has one JSON object a line, `kind` and `message`; everything that W&B prints goes to standard error.
"""

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.checkpoints import find_checkpoint
from hanabi_grpo.runs.run_folder import lock_run_folder
from hanabi_grpo.settings import LoadedSettings, read_settings, variables
from hanabi_grpo.tracking.mirror import sync_line, unsent_folders
from hanabi_grpo.tracking.publisher import Publisher
from hanabi_grpo.tracking.record import read_record
from hanabi_grpo.tracking.wandb_run import MARGIN_SECONDS, Unreachable, open_run, time_limit, wandb_environ

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


def mirror_run(run_folder: Path, from_step: int, showcase: ModuleType) -> int:
    """Mirror a run until its trainer ends; returns the process's exit code. For `showcase` see `Publisher`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(kind: str, message: str) -> None:
        logger.info("%s: %s", kind, message)
        try:
            output.write(json.dumps({"kind": kind, "message": message}) + "\n")
        except (OSError, ValueError):
            logger.info("the trainer is gone")

    try:
        settings = read_settings(run_folder / "settings.json")
        record = read_record(run_folder)
        try:
            run = open_run(settings, run_folder, record, settings.wandb_mode)
            say("ready", run.url or f"recorded in {run_folder / 'wandb'}")
        except Unreachable as error:
            run = open_run(settings, run_folder, record, "offline")
            say("offline", f"W&B does not answer ({error}): this run is recorded on this disk")
    except SettingsError as error:
        say("refused", str(error))
        return 2
    except Exception as error:
        # Whatever W&B's library raises: training goes on without it.
        logger.exception("W&B could not be started")
        say("trouble", f"W&B could not be started ({type(error).__name__}: {error})")
        return 1
    # From here on training comes first; until here it waited for the answer.
    os.nice(10)
    life: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(life,), daemon=True).start()
    trouble = partial(say, "trouble")
    publisher = Publisher(run, record, settings, run_folder, from_step=from_step, showcase=showcase, trouble=trouble)
    ended = None
    while ended is None:
        publisher.publish_new()
        with suppress(queue.Empty):
            ended = life.get(timeout=_LOOK_SECONDS)
    # A trainer that was killed says nothing: its last adapters wait for `hanabi-grpo upload`.
    whole = publisher.close(int(ended or 1), final=bool(ended))
    say("done" if whole else "incomplete", run.url or run.mode)
    return 0


def _listen(life: "queue.Queue[str]") -> None:
    """Hand on the trainer's last line, "" for one that was killed, and see to it that this process ends after it."""
    life.put(sys.stdin.readline().strip())
    time.sleep(time_limit(os.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def upload_run(
    run_folder: Path,
    loaded: LoadedSettings,
    say: Callable[[str], None],
    *,
    showcase: ModuleType,
    evaluations: Sequence[Path] = (),
) -> bool:
    """Send what W&B does not have of a run: rows, sample games, and the newest checkpoint as an artifact.

    It goes on in the run's own run at W&B, so it may be called again; returns whether everything went up. WANDB_* and
    CKPT_* variables of this shell win over those of the run. WANDB_MODE=offline makes an offline run of it; else it is
    sent, whatever mode the run had. For `showcase` see `Publisher`; `evaluations` go into the artifact.

    Raises:
        SettingsError: There are no settings in the folder, W&B refuses, or does not answer.
        RunFolderError: A trainer works in the folder.
    """
    settings = read_settings(run_folder / "settings.json")
    given = {
        variable.field: getattr(loaded.settings, variable.field)
        for variable in variables(settings.env)
        if variable.section == "tracking" and not loaded.origins[variable.field].startswith("default")
    }
    settings = settings.model_copy(update={"wandb_mode": "online", **given})
    if settings.wandb_mode == "disabled":
        raise SettingsError(
            "WANDB_MODE=disabled: nothing is uploaded; set online, or offline to record it on this disk."
        )
    with lock_run_folder(run_folder):
        # Nobody waits for this command but the one who typed it.
        os.environ.update(wandb_environ(run_folder, {"WANDB_FINISH_TIMEOUT": "0", **os.environ}))
        record = read_record(run_folder)
        try:
            run = open_run(settings, run_folder, record, settings.wandb_mode)
        except Unreachable as error:
            raise SettingsError(f"W&B does not answer ({error}); try the same command again later.") from error
        since = run.last_step
        say(f"run: {run.url or run.mode}; it has steps until {since}")
        publisher = Publisher(run, record, settings, run_folder, from_step=since, showcase=showcase, trouble=say)
        publisher.rows()
        try:
            found = find_checkpoint(run_folder)
        except RunFolderError as error:
            say(str(error))
        else:
            publisher.samples(found.manifest.step)
            made = publisher.final(found.folder, found.manifest.step, evaluations)
            if made is not None:
                say(f"artifact: {made.name} ({', '.join(made.aliases)}), from {run_folder / made.folder}")
        whole = publisher.finish(0)
    unsent = unsent_folders(run_folder)
    if whole and run.mode == "offline" and unsent:
        say(sync_line(unsent))
    return whole
