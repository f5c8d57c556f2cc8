"""A trainer's start without what nobody can act on."""

import logging
import subprocess
import sys

from hanabi_grpo.logs import KnownMessages

START = """
import logging, warnings
from hanabi_grpo.training.main import import_parts
for _ in import_parts():
    pass
logger = logging.getLogger("transformers.modeling_utils")
logger.warning("`torch_dtype` is deprecated! Use `dtype` instead!")
logger.warning("Some weights were not used: lm_head.bias")
warnings.warn("OMP_NUM_THREADS/MKL_NUM_THREADS unset, we set it at 2 to improve oob performance.")
warnings.warn("something else")
from accelerate import Accelerator
from deepspeed.accelerator import get_accelerator
get_accelerator()
"""


def test_known_messages_are_dropped_and_others_are_not() -> None:
    process = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=True, timeout=120
    )
    output = process.stdout + process.stderr
    assert "Some weights were not used: lm_head.bias" in output
    assert "something else" in output
    assert "torch_dtype" not in output
    assert "OMP_NUM_THREADS" not in output
    assert "Setting accelerator to CPU" not in output


def test_a_message_is_known_by_its_beginning() -> None:
    messages = KnownMessages(("known",))

    def is_shown(text: str) -> bool:
        return messages.filter(logging.makeLogRecord({"msg": text}))

    assert not is_shown("known, and more")
    assert is_shown("not known")
