"""A trainer's start without what nobody can act on."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from doctor_machines import ROOT
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


ALL_IN_ONE_PASS = """
import os, sys, tempfile
if sys.argv[1] == "quiet":
    from hanabi_grpo.training import quiet
    quiet.before_imports()
import torch
store = tempfile.NamedTemporaryFile()
torch.distributed.init_process_group("gloo", f"file://{store.name}", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Linear(2, 2), find_unused_parameters=True
)
model(torch.ones(1, 2)).sum().backward()
torch.distributed.destroy_process_group()
"""


def test_torch_does_not_warn_of_parameters_that_were_all_used() -> None:
    def output(how: str) -> str:
        process = subprocess.run(
            [sys.executable, "-c", ALL_IN_ONE_PASS, how],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={name: value for name, value in os.environ.items() if not name.startswith("TORCH")},
        )
        return process.stdout + process.stderr

    assert "did not find any unused parameters" in output("as it is")
    assert "unused parameters" not in output("quiet")


@pytest.mark.rest
@pytest.mark.parametrize(
    "command",
    [
        ("tiny-model", "--env", "kuhn_poker", "--steps", "2", "--games", "4", "--out", "model"),
        ("warm-start", "random", "--tasks", "2", "--steps", "2", "--out", "adapters"),
    ],
)
def test_models_are_made_without_lines_of_other_libraries(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "MODEL": str(ROOT / "data" / "tiny-model")},
    )
    output = process.stdout + process.stderr
    assert "accelerator" not in output
    assert "shards" not in output
    assert command[-1] in output


def test_a_message_is_known_by_its_beginning() -> None:
    messages = KnownMessages(("known",))

    def is_shown(text: str) -> bool:
        return messages.filter(logging.makeLogRecord({"msg": text}))

    assert not is_shown("known, and more")
    assert is_shown("not known")
