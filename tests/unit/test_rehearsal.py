"""A training step on a GPU that is not there: no mixed devices, and the doctor's sum of its memory.

Each rehearsal is a process of its own: the pretended device must be there before torch is imported.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLOSE = 0.15
"""By how much the doctor's sum may differ from the count."""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def in_a_process(*command: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def rehearse(name: str, *sizes: str) -> list[dict[str, Any]]:
    """Return what steps of a model take."""
    process = in_a_process("-m", "gpu.rehearsal", name, *sizes)
    assert process.returncode == 0, process.stderr[-4000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.rest
def test_the_doctors_sum_is_within_15_percent_of_what_is_alive() -> None:
    [step] = rehearse("qwen3-0.6b", "8x2048")
    assert abs(step["ratio"] - 1) < CLOSE, step
    assert step["predicted"] / step["peak"] == pytest.approx(step["ratio"], abs=1e-3)
    assert step["held"] < step["peak"]
    # The mismatch check takes no more than the sum, and holds no scores of tokens × tokens.
    assert step["check_tokens"] == 8192
    assert step["held"] < step["check_peak"] < (1 + CLOSE) * step["predicted"]
    assert "8192, 8192" not in step["check_largest_shape"]


@pytest.mark.rest
def test_what_is_alive_of_a_4b_model_is_what_an_h100_had_allocated() -> None:
    """15.6 GB and 26.4 GB, see docs/benchmarks.md; the sums of the doctor are close to both."""
    first, second = rehearse("qwen3-4b", "8x2048", "1x40960")
    assert first["peak"] == pytest.approx(15.6e9, rel=0.05)
    assert second["peak"] == pytest.approx(26.4e9, rel=0.05)
    for step in (first, second):
        assert abs(step["ratio"] - 1) < CLOSE, step
    # The output head in float32, and a layer that is computed again; never tokens × tokens.
    assert first["largest_shape"] == "[151936, 2560] torch.float32"
    assert second["largest_shape"] == "[1, 40960, 9728] torch.float32"
    assert second["held"] == first["held"]
    for step in (first, second):
        assert step["check_peak"] == pytest.approx(13.1e9, rel=0.05)
        assert step["check_largest_shape"] == "[151936, 2560] torch.float32"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            # As it was once: the number of steps stays where the file was read.
            "from hanabi_grpo.training.checkpoint import OptimizerState as O; import torch\n"
            "def put(self, p, key, value): self._torch.state[p][key] = value\n"
            "O._put_moment = put\n",
            "is on cpu after a restore, but the parameter is on cuda:0",
        ),
        (
            "from hanabi_grpo.training.model import output_head as h; import torch\n"
            "real = h._logps\n"
            "h._logps = lambda head, x, *others: real(head, x + torch.zeros(x.shape), *others)\n",
            "found at least two devices",
        ),
        pytest.param(
            # Only the mismatch check computes the law of tokens.
            "from hanabi_grpo.training.model import output_head as h; import torch\n"
            "real = h.law_of_logits\n"
            "h.law_of_logits = lambda x, *others: real(x + torch.zeros(x.shape), *others)\n",
            "found at least two devices",
            marks=pytest.mark.rest,
        ),
        pytest.param(
            # As it was once: float32 with grouped heads, whose kernel holds all scores.
            "from hanabi_grpo.training.model import output_head as h; import contextlib\n"
            "h._without_grouped_heads = contextlib.nullcontext\n"
            "from gpu.rehearsal import rehearse\n"
            "largest = rehearse('small', 2, 512).check_largest_shape\n"
            "assert '8192, 8192' not in largest, largest\n",
            "AssertionError: [4, 8192, 8192] torch.float32",
            marks=pytest.mark.rest,
        ),
    ],
)
def test_a_tensor_on_the_wrong_device_or_of_all_pairs_of_tokens_is_found(
    fault: str, message: str
) -> None:
    script = (
        "from gpu import rehearsal\nrehearsal.load_pretended_cuda()\n"
        f"{fault}rehearsal.rehearse('small', 2, 512)\n"
    )
    process = in_a_process("-c", script)
    assert process.returncode != 0
    assert message in process.stderr


def test_it_refuses_a_process_that_has_torch() -> None:
    process = in_a_process(
        "-c", "import torch\nfrom gpu import rehearsal\nrehearsal.load_pretended_cuda()"
    )
    assert "torch is already imported; call this first, in a new process." in process.stderr
