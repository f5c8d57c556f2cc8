"""The mirror's process: `python -m hanabi_grpo.commands.mirror --run RUN --from-step N`.

It reads the run folder and writes to W&B. Its standard input is the trainer's life: a line with the exit code when
training ended, or an end without a line when the trainer was killed. Its standard output has one JSON object a line,
see `mirror.Message`; everything that W&B prints goes to standard error.
"""

import argparse
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, read_settings
from hanabi_grpo.tracking.publisher import Publisher, Showcase
from hanabi_grpo.tracking.record import WandbRecord, read_record
from hanabi_grpo.tracking.wandb_run import (
    FINISH_SECONDS,
    MARGIN_SECONDS,
    Unreachable,
    WandbRun,
    open_run,
    time_limit,
)

logger = logging.getLogger("hanabi_grpo.tracking.sidecar")

_LOOK_SECONDS = 1.0


def main(argv: list[str], showcase: Showcase) -> int:
    """Mirror a run until its trainer ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="hanabi_grpo.commands.mirror")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--from-step", type=int, required=True)
    options = parser.parse_args(argv)
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
        settings = read_settings(options.run / "settings.json")
        record = read_record(options.run)
        run = _open(settings, options.run, record, say)
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
        run, record, settings, options.run, from_step=options.from_step, showcase=showcase, trouble=trouble
    )
    ended = None
    while ended is None:
        publisher.publish_new()
        with suppress(queue.Empty):
            ended = life.get(timeout=_LOOK_SECONDS)
    # A trainer that was killed says nothing: its last adapters wait for `hanabi-grpo upload`.
    whole = publisher.close(int(ended or 1), final=bool(ended))
    say("done" if whole else "incomplete", run.url or run.mode)
    return 0


def _open(settings: Settings, run_folder: Path, record: WandbRecord, say: Callable[[str, str], None]) -> WandbRun:
    mode = settings.wandb_mode
    try:
        run = open_run(settings, run_folder, record, mode)
    except Unreachable as error:
        run = open_run(settings, run_folder, record, "offline")
        say("offline", f"W&B does not answer ({error}): this run is recorded on this disk")
        return run
    say("ready", run.url or f"recorded in {run_folder / 'wandb'}")
    return run


def _listen(life: "queue.Queue[str]") -> None:
    """Hand on the trainer's last line, "" for one that was killed, and see to it that this process ends after it."""
    life.put(sys.stdin.readline().strip())
    time.sleep(time_limit(os.environ, "WANDB_FINISH_TIMEOUT", FINISH_SECONDS) + MARGIN_SECONDS)
    os.killpg(0, signal.SIGKILL)
