"""The app in a process that may open few files and connections: `python crowded_server.py NUMBER`.

It may open NUMBER more than it needs before it serves. It prints its port, and serves until its
standard input ends.
"""

import os
import resource
import sys

from server_app import running_app


def main() -> None:
    """Serve."""
    in_use = len(os.listdir("/proc/self/fd"))
    limit = in_use + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with running_app() as app:
        print(app.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
