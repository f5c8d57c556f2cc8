"""Let every Python process below a server report its death signal when it gets SIGUSR2.

The death signal is the one that the kernel sends a process when its parent ends. The kernel tells
it to nobody but the process itself. The answer is written to the folder $DEATH_SIGNALS, in a file
that is named after the process's number.
"""

import ctypes
import os
import signal
from pathlib import Path

_PR_GET_PDEATHSIG = 2


def _report(*_: object) -> None:
    number = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    pid = str(os.getpid())
    partial = Path(os.environ["DEATH_SIGNALS"], f".{pid}")
    partial.write_text(str(number.value))
    partial.rename(partial.with_name(pid))


signal.signal(signal.SIGUSR2, _report)
