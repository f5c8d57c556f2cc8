"""What other libraries say at every start of a trainer, and what nobody can act on.

A message that says the same in every run hides the one that does not. Each is named here, with the
reason why it may go; everything else that these libraries say is shown.
"""

import logging
import os
import warnings

from hanabi_grpo.logs import KnownMessages
from hanabi_grpo.settings.defaults import installed_device

_LOGGED = (
    # ms-swift's own call of transformers, in every run.
    "`torch_dtype` is deprecated! Use `dtype` instead!",
    # Several processes are DeepSpeed's here, not DistributedDataParallel's.
    "torch.distributed process group is initialized, but parallel_mode != ParallelMode.DISTRIBUTED",
)
"""Beginnings of lines of transformers' loggers."""
_WARNED = (
    # accelerate; the number of threads is that of the machine's cores, as without it.
    "OMP_NUM_THREADS/MKL_NUM_THREADS unset, we set it at",
)
"""Beginnings of warnings."""


def before_imports() -> None:
    """Answer what DeepSpeed would ask the machine, and drop known warnings of torch."""
    if installed_device()[0] == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        # DistributedDataParallel, which does nothing in one process, warns where all players have
        # shared the first backward pass. With several processes warnings of NCCL must be seen.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for beginning in _WARNED:
        warnings.filterwarnings("ignore", message=beginning)


def after_imports() -> None:
    """Drop the known messages of transformers, and its bars of progress."""
    import transformers.utils.logging as transformers_logging

    # A bar of a model that is read within seconds is a line of control characters in a log.
    transformers_logging.disable_progress_bar()
    # A filter of a logger sees its own records alone, one of its handler those of all below it.
    transformers_logging.get_logger()
    for handler in logging.getLogger("transformers").handlers:
        handler.addFilter(KnownMessages(_LOGGED))
