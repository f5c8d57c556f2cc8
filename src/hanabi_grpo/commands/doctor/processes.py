"""Which process listens on a port and which rollout servers run, read from /proc."""

import itertools
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"
_ONLY_LOOK = {"--dry-run", "--print-config"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of this machine."""

    pid: int
    command: str
    parent: int


def port_owner(port: int) -> Process | None:
    """Return the process that listens on a TCP port; None when there is none, or it is another user's."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return None
    for folder in _folders():
        try:
            if any(str(link.readlink()) in wanted for link in (folder / "fd").iterdir()):
                return _process(folder)
        except OSError:
            continue  # another user's, or gone meanwhile
    return None


def rollout_servers() -> list[Process]:
    """Return every running `hanabi-grpo serve`."""
    found = []
    for folder in _folders():
        words = _words(folder)
        # Not the shell or the `timeout` that started it, and none that only looks.
        if not words or not _ONLY_LOOK.isdisjoint(words) or not Path(words[0]).name.startswith("python"):
            continue
        for program, command in itertools.pairwise(words):
            ours = Path(program).name in ("hanabi-grpo", "hanabi_grpo.cli") or program.endswith("hanabi_grpo/cli.py")
            if ours and command == "serve" and (process := _process(folder)) is not None:
                found.append(process)
                break
    return found


def orphaned_engines() -> list[Process]:
    """Return the engine processes of vLLM whose server is gone: init has adopted them."""
    found = (_process(folder) for folder in _folders() if " ".join(_words(folder)).startswith("VLLM::"))
    # In a container init may be a server itself, ours or another of vLLM's, and its engine is no orphan.
    first = " ".join(_words(_PROC / "1")).lower()
    adopted = "vllm" not in first and "hanabi" not in first
    return [process for process in found if process is not None and process.parent == 1 and adopted]


def _folders() -> list[Path]:
    return [folder for folder in _PROC.iterdir() if folder.name.isdecimal()]


def _words(folder: Path) -> list[str]:
    try:
        return [word for word in (folder / "cmdline").read_text(errors="replace").split("\0") if word]
    except OSError:
        return []


def _process(folder: Path) -> Process | None:
    try:
        stat = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses itself.
    parent = int(stat.rpartition(")")[2].split()[1])
    command = " ".join(_words(folder)) or stat.partition("(")[2].rpartition(")")[0]
    return Process(pid=int(folder.name), command=command, parent=parent)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        source = _PROC / "net" / table
        for line in source.read_text().splitlines()[1:] if source.is_file() else []:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes
