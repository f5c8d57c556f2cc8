"""vLLM's log lines, in our form and without what it says at every start.

vLLM configures its loggers in each of its processes from the file that VLLM_LOGGING_CONFIG_PATH
names; ours, `vllm_logging.json`, names `make_handler`.
"""

import json
import logging
import logging.config
import os
import sys
from pathlib import Path

from hanabi_grpo.logs import CLOCK, KnownMessages, VisibleFormatter

CONFIG = Path(__file__).with_name("vllm_logging.json")
"""What VLLM_LOGGING_CONFIG_PATH is, unless somebody has set it."""
PYTHONWARNINGS = ",".join(
    (
        # vLLM looks at all that torch has, and so at what torch has deprecated.
        "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning",
        # vLLM ends its processes before they have given back a semaphore; the kernel does.
        "ignore::UserWarning:multiprocessing.resource_tracker",
    )
)
"""What PYTHONWARNINGS is in the engine's processes, unless somebody has set it."""
_KNOWN = (
    # Ours, read by both terminals.
    "Unknown vLLM environment variable detected: VLLM_SERVER_",
    # What our options ask for on a CPU, and what a CPU has not.
    "Enforce eager set, disabling torch.compile",
    "Inductor compilation was disabled by user settings",
    "Triton is not installed. triton-cpu is expected",
    "Triton is installed, but doesn't include CPU backend",
    "Model Runner V2 requires Triton",
    "Reset SSM cache type to float32",
    "libtcmalloc is not found in LD_PRELOAD",
    "libiomp is not found in LD_PRELOAD",
    # HANABI_DTYPE asks for it.
    "Attempted to load weight ",
    # The way in which token ids are handed to vLLM 0.32's engine, and adapters' tokenizers, of
    # which we have none.
    "Passing raw prompts to InputProcessor is deprecated",
    "vLLM has deprecated support for supporting different tokenizers for different LoRAs",
)
"""Beginnings of lines that are dropped: the same at every start, and nobody can act on them."""


def configure_early() -> None:
    """Give vLLM's loggers our form before vLLM is imported.

    vLLM (0.32) configures its loggers when an engine is built, and what it says during its import
    would come out bare. Nothing happens where VLLM_LOGGING_CONFIG_PATH names another file.
    """
    if os.environ.get("VLLM_LOGGING_CONFIG_PATH") == str(CONFIG):
        logging.config.dictConfig(json.loads(CONFIG.read_text()))


def make_handler() -> logging.Handler:
    """Return the handler of vLLM's loggers, and set their level: that of VLLM_LOGGING_LEVEL."""
    level = os.environ.get("VLLM_LOGGING_LEVEL", "WARNING").upper()
    logging.getLogger("vllm").setLevel(level)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        VisibleFormatter("%(asctime)s vllm %(levelname)s: %(message)s", datefmt=CLOCK)
    )
    handler.addFilter(KnownMessages(_KNOWN))
    return handler
