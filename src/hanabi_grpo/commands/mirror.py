"""The process that mirrors a run to W&B; the trainer starts it, see `tracking.mirror`.

`python -m hanabi_grpo.commands.mirror RUN STEP`. Its standard input is the trainer's life: a line
with the exit code when training ended, or an end without a line when the trainer was killed. Its
standard output has one JSON object a line, `kind` and `message`; everything that W&B prints goes to
standard error."""

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.report.games import newest_games_page
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking.publisher import Publisher
from hanabi_grpo.tracking.record import read_record
from hanabi_grpo.tracking.wandb_run import MARGIN_SECONDS, Unreachable, open_run, time_limit

logger = logging.getLogger("hanabi_grpo.commands.mirror")

_LOOK_SECONDS = 1.0


def mirror_run(run_folder: Path, from_step: int) -> int:
    """Mirror a run until its trainer ends; returns the process's exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
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
    publisher = Publisher(
        run,
        record,
        settings,
        run_folder,
        from_step=from_step,
        games_page=newest_games_page,
        trouble=trouble,
    )
    ended = None
    while ended is None:
        publisher.publish_new()
        with suppress(queue.Empty):
            ended = life.get(timeout=_LOOK_SECONDS)
    # A trainer that was killed says nothing.
    whole = publisher.close(int(ended or 1))
    say("done" if whole else "incomplete", run.url or run.mode)
    return 0


def _listen(life: "queue.Queue[str]") -> None:
    """Hand on the trainer's last line, "" for one that was killed, and see to it that this process
    ends after it.
    """
    life.put(sys.stdin.readline().strip())
    time.sleep(time_limit(os.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    try:
        code = mirror_run(Path(sys.argv[1]), int(sys.argv[2]))
    except HanabiGrpoError as failure:
        logger.error("%s", failure)
        code = 2
    sys.stderr.flush()
    sys.exit(code)
