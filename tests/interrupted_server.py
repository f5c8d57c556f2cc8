"""A server whose terminal gets Ctrl-C between two serving processes: `python … MOMENT`.

For `test_server_restart.py`, which starts it as the first process of a session without a terminal.
Its first serving process dies at once, and the second one serves for a while. MOMENT is when
somebody presses Ctrl-C: "at the end" of the first one, or "at the fork" of the second one. The
signal arrives before that fork, so that the terminal cannot send it to the second one.
"""

import fcntl
import os
import pty
import signal
import sys
import termios
import time

from hanabi_grpo.server import main as server

_SERVING_SECONDS = 60.0


class _Interrupted:
    """Presses Ctrl-C in the terminal of this process at a given moment."""

    def __init__(self, moment: str) -> None:
        self.num_forks = 0
        self._moment = moment
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
        self._fork = os.fork
        self._kill_descendants = server._kill_descendants

    def kill_descendants(self) -> None:
        self._kill_descendants()
        if self._moment == "at the end":
            self._press_ctrl_c()

    def fork(self) -> int:
        self.num_forks += 1
        if self.num_forks == 2 and self._moment == "at the fork":
            self._press_ctrl_c()
        return self._fork()

    def _press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")
        while signal.SIGINT not in signal.sigpending():
            time.sleep(0.01)


def main() -> None:
    """Supervise two serving processes."""
    interrupted = _Interrupted(sys.argv[1])
    server._kill_descendants = interrupted.kill_descendants
    os.fork = interrupted.fork
    server.fork_and_supervise(allowed=3)
    if interrupted.num_forks == 1:
        sys.exit(server.EXIT_CODE)
    time.sleep(_SERVING_SECONDS)
    print("not interrupted")


if __name__ == "__main__":
    main()
