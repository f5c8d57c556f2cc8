"""vLLM's own loggers write in our form, without the lines that are the same at every start."""

import os
import subprocess
import sys

from hanabi_grpo.server import vllm_log

PROGRAM = """
import vllm.logger
from vllm.config.logging import LoggingConfig
for _ in range(2):
    vllm.logger.configure_logging(LoggingConfig())
    logger = vllm.logger.init_logger("vllm.somewhere")
    logger.warning("Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.")
    logger.warning("the cache is \\x1b[31mfull")
    logger.info("a detail")
"""


def run(**environ: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "VLLM_LOGGING_CONFIG_PATH": str(vllm_log.CONFIG), **environ},
    )
    return process.stdout


def test_known_lines_are_dropped_and_others_only_show_themselves_whenever_vllm_configures() -> None:
    lines = run(VLLM_LOGGING_LEVEL="WARNING").splitlines()
    shown = [line.partition(" ")[2] for line in lines]
    assert shown == ["vllm WARNING: the cache is ␛[31mfull"] * 2


def test_the_level_is_that_of_vllms_variable() -> None:
    assert "vllm INFO: a detail" in run(VLLM_LOGGING_LEVEL="info")
