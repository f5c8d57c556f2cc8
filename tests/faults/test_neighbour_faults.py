"""Other programs of the same machine: servers in containers, pages in its browser, users who read what is public."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guarded import guarded

from hanabi_grpo.server import adapter_store

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""A PID namespace of its own: as a container that shares /dev/shm, it sees none of our process numbers."""


def test_a_server_in_another_pid_namespace_leaves_the_adapters_of_a_living_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets no user make a PID namespace")
    monkeypatch.setattr(adapter_store, "adapter_home", lambda: tmp_path)
    start = "import sys, pathlib; from hanabi_grpo.server.adapter_folders import AdapterFolders as F; "
    with guarded() as one:
        again = [sys.executable, "-c", start + "print(F(pathlib.Path(sys.argv[1])).root)", str(tmp_path)]
        other = subprocess.run([*UNSHARE, *again], capture_output=True, text=True, check=True)
        one.check()
        killed = Path(other.stdout.strip())
        assert killed.is_dir() and killed != one.app.store._folders.root
        subprocess.run([*UNSHARE, *again], capture_output=True, check=True)
        assert not killed.exists(), "what a killed server left is removed across namespaces too"
