"""The functions of `tools/session.sh` that watch over a server, on real processes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOLDS = "import time\nheld = bytearray(b'x') * 60_000_000\nprint(1, flush=True)\ntime.sleep(60)"


def session(body: str) -> list[str]:
    """Run a script with `tools/session.sh` loaded and strict shell options, and return its lines."""
    script = f"set -euo pipefail\nsource tools/session.sh\nname=test folder=nowhere MODEL=none\n{body}"
    result = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout.splitlines()


def test_a_process_runs_until_it_is_gone_or_a_zombie() -> None:
    starts = "import subprocess as s, time; own = s.Popen(['true']); print(own.pid, flush=True); time.sleep(60)"
    lines = session(f"""
        sleep 60 & child=$!
        is_running $child && echo runs
        echo "alive: $(alive 999999999 $child | sed s/$child/child/)"
        kill $child
        wait $child || true
        is_running $child || echo "is gone"
        coproc {{ exec {sys.executable} -c "{starts}"; }}
        read -r zombie <&"${{COPROC[0]}}"
        until grep -q zombie /proc/$zombie/status; do sleep 0.05; done
        is_running $zombie || echo "is a zombie"
        kill $COPROC_PID
    """)
    assert lines == ["runs", "alive: child", "is gone", "is a zombie"]


def test_grandchildren_and_children_of_threads_are_found() -> None:
    starts = "import subprocess as s, threading; threading.Thread(target=s.run, args=(['sleep', '60'],)).start()"
    lines = session(f"""
        (sleep 60; true) 2>/dev/null & one=$!
        {sys.executable} -c "{starts}" & other=$!
        names() {{ local pid; for pid in $(descendants $one $other); do cut -d' ' -f2 /proc/$pid/stat; done; }}
        # Until both are there and have become what they are told to be.
        until [ "$(echo $(names))" = "(sleep) (sleep)" ]; do sleep 0.05; done
        echo none: $(descendants 999999999)
        kill $(descendants $one $other)
        end_family $one $other
        echo left: $(alive $one $other)
    """)
    assert lines == ["none:", "left:"]


def test_memory_is_that_of_the_whole_family_at_its_most() -> None:
    holds = f'{sys.executable} -c "{HOLDS}"'
    lines = session(f"""
        coproc {{ exec {holds}; }}
        read -r _ <&"${{COPROC[0]}}"
        child=$COPROC_PID
        memory
        echo $peak
        end_family $child
        server=$child child=999999999
        before=$peak
        memory
        [ $peak = $before ] && echo "the most stays"
    """)
    assert 60_000 < int(lines[0]) < 160_000
    assert lines[1:] == ["the most stays"]


def test_a_command_is_run_with_its_status_and_its_memory_looked_at() -> None:
    lines = session("""
        status=0
        run - bash -c "sleep 1.5; exit 3" || status=$?
        echo $status $((peak > 0))
    """)
    assert lines == ["3 1"]


def test_a_server_that_dies_ends_the_script(tmp_path: Path) -> None:
    script = f"""
        source tools/session.sh
        folder={tmp_path} name=test MODEL=none
        trap clean_up EXIT
        echo "its last words" >$folder/server.log
        sleep 0.2 & server=$!
        run - sleep 60
    """
    result = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "test: the rollout server died" in result.stderr and "its last words" in result.stderr
