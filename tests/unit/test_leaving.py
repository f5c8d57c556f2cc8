"""The end of a trainer process: all work is written, and the interpreter is not taken apart."""

import subprocess
import sys

PROGRAM = """
import atexit
from hanabi_grpo.processes import leave


class Library:
    def __del__(self):
        print("taken apart")


library = Library()
atexit.register(print, "registered")
print("printed", end=" ")
leave(7)
"""


def test_leaving_runs_what_is_registered_and_keeps_what_was_printed_and_the_exit_code() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert process.stdout == "printed registered\n"
    assert process.stderr == ""
    assert process.returncode == 7
