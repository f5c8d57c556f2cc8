"""vLLM's log lines, in our format and without the lines that recur at every start.

In each of its processes, vLLM configures its loggers from the file in VLLM_LOGGING_CONFIG_PATH;
ours, `vllm_logging.json`, uses `make_handler`.
"""

import json
import logging
import logging.config
import os
import sys
from pathlib import Path

from hanabi_grpo.logs import CLOCK, KnownMessages, VisibleFormatter

CONFIG = Path(__file__).with_name("vllm_logging.json")
"""Default of VLLM_LOGGING_CONFIG_PATH."""
PYTHONWARNINGS = ",".join(
    (
        # vLLM inspects all of torch, including deprecated attributes.
        "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning",
        # vLLM ends its processes before they release a semaphore; the kernel releases it.
        "ignore::UserWarning:multiprocessing.resource_tracker",
    )
)
"""Default of PYTHONWARNINGS in the engine's processes."""
_KNOWN = (
    # Our own variables, read in both terminals.
    "Unknown vLLM environment variable detected: VLLM_SERVER_",
    # Expected with our options on a CPU, and about features that a CPU lacks.
    "Enforce eager set, disabling torch.compile",
    "Inductor compilation was disabled by user settings",
    "Triton is not installed. triton-cpu is expected",
    "Triton is installed, but doesn't include CPU backend",
    "Model Runner V2 requires Triton",
    "Reset SSM cache type to float32",
    "libtcmalloc is not found in LD_PRELOAD",
    "libiomp is not found in LD_PRELOAD",
    # Requested by HANABI_DTYPE.
    "Attempted to load weight ",
    # The way in which vLLM 0.32's engine gets token ids, and adapters' own tokenizers, which we do
    # not use.
    "Passing raw prompts to InputProcessor is deprecated",
    "vLLM has deprecated support for supporting different tokenizers for different LoRAs",
)
"""Beginnings of lines that are dropped: they recur at every start and cannot be acted on."""


def configure_early() -> None:
    """Configure vLLM's loggers before vLLM is imported.

    vLLM (0.32) configures its loggers when an engine is built, so log lines during its import would
    be unformatted. Does nothing if VLLM_LOGGING_CONFIG_PATH names another file.
    """
    if os.environ.get("VLLM_LOGGING_CONFIG_PATH") == str(CONFIG):
        logging.config.dictConfig(json.loads(CONFIG.read_text()))


def make_handler() -> logging.Handler:
    """Return the handler of vLLM's loggers, and set their level from VLLM_LOGGING_LEVEL."""
    level = os.environ.get("VLLM_LOGGING_LEVEL", "WARNING").upper()
    logging.getLogger("vllm").setLevel(level)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        VisibleFormatter("%(asctime)s vllm %(levelname)s: %(message)s", datefmt=CLOCK)
    )
    handler.addFilter(KnownMessages(_KNOWN))
    return handler
