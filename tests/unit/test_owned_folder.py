"""Folders of a server process: the next server removes those whose owner is gone, and no other."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hanabi_grpo.server.adapter_loader import LOCK, OwnedFolder

HOLD = """
import sys
from pathlib import Path
from hanabi_grpo.server.adapter_loader import OwnedFolder
print(OwnedFolder(Path(sys.argv[1])).path, flush=True)
sys.stdin.read()
"""


def test_a_folder_lives_as_long_as_the_process_that_holds_its_lock(
    tmp_path: Path, start_process: Callable[..., Any]
) -> None:
    holder = start_process(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    theirs = Path(holder.stdout.readline().strip())
    ours = OwnedFolder(tmp_path)
    assert theirs.is_dir()
    holder.kill()
    holder.wait()
    later = OwnedFolder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([ours.path, later.path])
    later.close()
    later.close()  # closing twice does no harm
    ours.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_leftover_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK).touch()
    (tmp_path / "hanabi-adapters-link").symlink_to(elsewhere)
    (tmp_path / "hanabi-adapters-without-lock").mkdir()
    (tmp_path / "hanabi-adapters-file").touch()
    linked_lock = tmp_path / "hanabi-adapters-linked-lock"
    linked_lock.mkdir()
    (linked_lock / LOCK).symlink_to(elsewhere / LOCK)
    before = sorted(tmp_path.rglob("*"))
    OwnedFolder(tmp_path).close()
    assert sorted(tmp_path.rglob("*")) == before
