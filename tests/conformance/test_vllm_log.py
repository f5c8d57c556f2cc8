"""vLLM's own loggers write in our form, without the lines that are the same at every start."""

import os
import subprocess
import sys

from hanabi_grpo.server import vllm_log
from hanabi_grpo.server.plugin import PLUGIN_NAME

PROGRAM = """
from hanabi_grpo.server import vllm_log
vllm_log.configure_early()
import vllm.logger
from vllm.config.logging import LoggingConfig
for _ in range(2):
    vllm.logger.configure_logging(LoggingConfig())
    logger = vllm.logger.init_logger("vllm.somewhere")
    logger.warning("Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.")
    logger.warning("the cache is \\x1b[31mfull")
    logger.info("a detail")
"""


def run(program: str = PROGRAM, *arguments: str, **environ: str) -> str:
    """Run a program with our logging file and return what it wrote, errors too."""
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
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


def test_what_vllm_says_during_its_import_is_in_our_form_too() -> None:
    program = """
import hanabi_grpo.cli
import vllm.logger
logger = vllm.logger.init_logger("vllm.somewhere")
logger.warning("Triton is installed, but doesn't include CPU backend. Disabling Triton.")
logger.warning("something new")
"""
    # As Python starts a spawned process, which imports the parent's main module first.
    output = run(
        program,
        "--multiprocessing-fork",
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_PLUGINS=PLUGIN_NAME,
    )
    assert output.partition(" ")[2] == "vllm WARNING: something new\n"


def test_only_an_engine_core_is_without_the_garbage_collector_until_the_plugin_is_loaded() -> None:
    program = "import hanabi_grpo.cli, gc; print(gc.isenabled())"
    assert run(program, "--multiprocessing-fork", VLLM_PLUGINS=PLUGIN_NAME) == "False\n"
    assert run(program, "--multiprocessing-fork", VLLM_PLUGINS="") == "True\n"
    assert run(program, VLLM_PLUGINS=PLUGIN_NAME) == "True\n"
