"""One trainer process: `python -m hanabi_grpo.training.main --settings RUN/settings.json [ms-swift options]`."""

import argparse
import logging
import os
import sys
from pathlib import Path

from hanabi_grpo.errors import HanabiGrpoError


def main(argv: list[str]) -> int:
    """Train; returns the exit code. Options after ours go to ms-swift and win over the settings."""
    parser = argparse.ArgumentParser(prog="hanabi_grpo.training.main")
    parser.add_argument("--settings", type=Path, required=True, help="settings.json of a run folder")
    known, extra = parser.parse_known_args(argv)
    _prepare_environment()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx").setLevel(logging.WARNING)

    from hanabi_grpo.datasets import load_rows, num_steps
    from hanabi_grpo.settings import read_settings
    from hanabi_grpo.training.arguments import swift_options
    from hanabi_grpo.training.pipeline import HanabiPipeline, register_trainer

    try:
        settings = read_settings(known.settings)
        steps = num_steps(settings, load_rows(Path(settings.dataset), settings))
        register_trainer()
        HanabiPipeline([*swift_options(settings, known.settings, known.settings.parent, steps), *extra]).main()
    except HanabiGrpoError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the last finished step is saved", file=sys.stderr, flush=True)
        return 130
    return 0


def _prepare_environment() -> None:
    # The base model is a local folder by now: no library has to ask a hub about it.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("USE_HF", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["VLLM_PLUGINS"] = ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
