"""One trainer process: `python -m hanabi_grpo.training.main --settings RUN/settings.json [ms-swift
options]`.
"""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.logs import set_up_logging
from hanabi_grpo.processes import die_with_parent, importing

logger = logging.getLogger("hanabi_grpo.training.main")

_PARTS = (
    "torch",
    "transformers.trainer",
    "trl",
    "swift.arguments",
    "swift.rlhf_trainers",
    "hanabi_grpo.training.pipeline",
)
"""Imported in this order; the last one has all that the trainer needs."""


def main(argv: list[str]) -> int:
    """Train; returns the exit code. Options after ours go to ms-swift, but for those that
    `pass_through` refuses.
    """
    parser = argparse.ArgumentParser(prog="hanabi_grpo.training.main")
    parser.add_argument(
        "--settings", type=Path, required=True, help="settings.json of a run folder"
    )
    known, extra = parser.parse_known_args(argv)
    _prepare_environment()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # The launcher holds the run folder's lock; a worker that outlived it would train beside the
        # next trainer.
        die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    set_up_logging(file=known.settings.parent / "train.log")
    for _ in import_parts():
        pass

    from hanabi_grpo.rollout.datasets import num_steps, training_rows
    from hanabi_grpo.runs.run_folder import resume_command_of
    from hanabi_grpo.settings import read_settings
    from hanabi_grpo.settings.pass_through import check_options
    from hanabi_grpo.training.pipeline import HanabiPipeline, register_trainer, swift_options

    try:
        check_options("trainer", extra)
        settings = read_settings(known.settings)
        steps = num_steps(settings, training_rows(settings))
        register_trainer()
        HanabiPipeline(
            [*swift_options(settings, known.settings, known.settings.parent, steps), *extra]
        ).main()
    except HanabiGrpoError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return 2
    except (KeyboardInterrupt, SystemExit) as stop:
        if os.environ.get("RANK", "0") == "0" and (
            command := resume_command_of(known.settings.parent)
        ):
            logger.info("to go on:\n    %s", command)
        if isinstance(stop, SystemExit):
            raise
        return 130
    except Exception:
        # Also into train.log: the terminal may be gone when somebody looks.
        logger.exception("training failed")
        return 1
    return 0


def import_parts() -> Iterator[None]:
    """Import what a trainer consists of, a part at each step, for whoever waits for something else
    meanwhile.
    """
    _prepare_environment()
    for part in _PARTS:
        with importing():
            import_module(part)
        yield


def _prepare_environment() -> None:
    # The base model is a local folder by now: no library has to ask a hub about it.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("USE_HF", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Micro-batches differ in length; without it a GPU's memory is cut into pieces that fit none.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # ms-swift prints its 500 options and the model; they are in args.json of the run folder.
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    # The engine is the server's. trl and ms-swift import vLLM wherever it is installed: a third of
    # the trainer's start.
    sys.modules.setdefault("vllm", None)  # type: ignore[arg-type]
    if "WORLD_SIZE" not in os.environ and "MASTER_PORT" not in os.environ:
        # Without a launcher accelerate listens on one fixed port, so a second trainer on this
        # machine would fail.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
