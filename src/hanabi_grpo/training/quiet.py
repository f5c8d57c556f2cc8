"""Suppresses messages that other libraries print at every start and that need no action.

Messages that are the same in every run hide the ones that matter. Each suppressed message is listed
here with the reason; everything else that these libraries print is shown.
"""

import logging
import os
import warnings

from hanabi_grpo.logs import KnownMessages
from hanabi_grpo.settings.defaults import installed_device

_LOGGED = (
    # Caused by ms-swift's own call of transformers, in every run.
    "`torch_dtype` is deprecated! Use `dtype` instead!",
    # With several processes, DeepSpeed is used here, not DistributedDataParallel.
    "torch.distributed process group is initialized, but parallel_mode != ParallelMode.DISTRIBUTED",
)
"""Prefixes of log lines of transformers."""
_WARNED = (
    # From accelerate, which sets the number of cores: the same as the default.
    "OMP_NUM_THREADS/MKL_NUM_THREADS unset, we set it at",
)
"""Prefixes of warnings."""


def before_imports() -> None:
    """Tell DeepSpeed which accelerator to use, and suppress known warnings of torch."""
    if installed_device()[0] == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        # DistributedDataParallel, which does nothing in one process, warns if all players share
        # the first backward pass. With several processes, NCCL's warnings must stay visible.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for beginning in _WARNED:
        warnings.filterwarnings("ignore", message=beginning)


def after_imports() -> None:
    """Suppress known messages of transformers, and its progress bars."""
    import transformers.utils.logging as transformers_logging

    # The progress bar of loading a model only adds a line of control characters to a log.
    transformers_logging.disable_progress_bar()
    # A logger's filter sees only its own records; a handler's filter sees those of all children.
    transformers_logging.get_logger()
    for handler in logging.getLogger("transformers").handlers:
        handler.addFilter(KnownMessages(_LOGGED))
