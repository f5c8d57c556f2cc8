"""One trainer process.

    python -m hanabi_grpo.training.main --settings RUN/settings.json [options]

Options that this module does not know are passed to ms-swift.
"""

import argparse
import faulthandler
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
from hanabi_grpo.processes import (
    die_with_parent,
    hide_misfits,
    importing,
    leave,
    wait_for_debugger,
)
from hanabi_grpo.training import quiet

logger = logging.getLogger("hanabi_grpo.training.main")

EXIT_FAILED = 1
"""Training failed with an unexpected exception."""
EXIT_REFUSED = 2
"""Training failed with an error that the message explains."""
EXIT_INTERRUPTED = 130
"""Ctrl-C."""
_SIGNAL_EXIT = 128
"""Added to a signal's number to form the exit code, as shells do."""
_PARTS = (
    "torch",
    "transformers.trainer",
    "trl",
    "swift.arguments",
    "swift.rlhf_trainers",
    "hanabi_grpo.training.pipeline",
)
"""Imported in this order; the last module imports everything else that the trainer needs."""


def main(argv: list[str]) -> int:
    """Train; returns the exit code.

    Args:
        argv: The command line without the program. Unknown options are passed to ms-swift, except
            those that `pass_through` refuses.
    """
    parser = argparse.ArgumentParser(prog="hanabi_grpo.training.main")
    parser.add_argument(
        "--settings", type=Path, required=True, help="path of the settings.json in a run folder"
    )
    known, extra = parser.parse_known_args(argv)
    run_folder: Path = known.settings.parent
    _prepare_environment()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # The launcher holds the run folder's lock; a worker that outlived it would keep training
        # next to the next trainer.
        die_with_parent(signal.SIGKILL)
    # When a library crashes, print which of our functions called it.
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_SIGNAL_EXIT + signal.SIGTERM))
    set_up_logging(file=run_folder / "train.log")
    for _ in import_parts():
        pass
    try:
        _train(known.settings, extra)
        _leave_process_group()
    except HanabiGrpoError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return EXIT_REFUSED
    except (KeyboardInterrupt, SystemExit) as stop:
        _print_resume_command(run_folder)
        if isinstance(stop, SystemExit):
            raise
        return EXIT_INTERRUPTED
    except Exception:
        # Also written to train.log, because the terminal may be closed by then.
        logger.exception("training failed")
        return EXIT_FAILED
    return 0


def _leave_process_group() -> None:
    """Close the connections to the other processes, once the run is over for all of them."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def import_parts() -> Iterator[None]:
    """Import the trainer's modules, one per iteration.

    A caller that waits for something else meanwhile advances it one module at a time.
    """
    _prepare_environment()
    quiet.before_imports()
    for part in _PARTS:
        with importing():
            import_module(part)
        yield
    quiet.after_imports()


def _train(settings_path: Path, extra: list[str]) -> None:
    from hanabi_grpo.rollout.datasets import num_steps, training_rows
    from hanabi_grpo.settings import read_settings
    from hanabi_grpo.settings.pass_through import check_options
    from hanabi_grpo.training.pipeline import (
        HanabiPipeline,
        check_gpus,
        register_trainer,
        swift_options,
    )

    check_options("trainer", extra)
    settings = read_settings(settings_path)
    if settings.debug == "trainer" and os.environ.get("RANK", "0") == "0":
        wait_for_debugger("trainer")
    check_gpus(settings)
    steps = num_steps(settings, training_rows(settings))
    register_trainer()
    options = swift_options(settings, settings_path, settings_path.parent, steps)
    HanabiPipeline([*options, *extra]).main()


def _print_resume_command(run_folder: Path) -> None:
    from hanabi_grpo.runs.run_folder import resume_command_of

    is_main_process = os.environ.get("RANK", "0") == "0"
    command = resume_command_of(run_folder)
    if is_main_process and command:
        logger.info("to continue:\n    %s", command)


def _prepare_environment() -> None:
    hide_misfits()
    # The base model is already a local folder: no library has to query a hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("USE_HF", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Micro-batches differ in length; without this setting they fragment the GPU's memory.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # ms-swift prints its 500 options and the model; they are in args.json of the run folder.
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    # Only the server needs the engine. trl and ms-swift import vLLM wherever it is installed, which
    # takes a third of the trainer's startup time.
    sys.modules.setdefault("vllm", None)  # type: ignore[arg-type]
    if "WORLD_SIZE" not in os.environ and "MASTER_PORT" not in os.environ:
        # Without a launcher, accelerate listens on a fixed port, so a second trainer on this
        # machine would fail.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            os.environ["MASTER_PORT"] = str(probe.getsockname()[1])


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
