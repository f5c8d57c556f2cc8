"""A trainer on several machines (nodes).

Node 0 does everything that a single machine does: it creates and locks the run folder, waits for
the servers and writes settings.json. The other nodes join it: their processes read settings.json
from the same run folder, which must have the same path on all nodes.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import BatchPlan, Settings

DEFAULT_PORT = 29500
"""torchrun's default."""
_MAX_NODES = 4096
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of one trainer, and which of them this is."""

    count: int = 1
    rank: int = 0
    """Node 0 creates the run folder, which the others join."""
    address: str = ""
    """Address at which the other nodes reach node 0."""
    port: int = DEFAULT_PORT


def read_nodes(environ: Mapping[str, str] = os.environ) -> Nodes:
    """Read torchrun's variables NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT.

    If NNODES is 1 or unset, the other variables are not read.

    Raises:
        SettingsError: A variable is missing or out of its range.
    """
    count = _read_number(environ, "NNODES", default=1, low=1, high=_MAX_NODES)
    if count == 1:
        return Nodes()
    rank = _read_number(environ, "NODE_RANK", default=None, low=0, high=count - 1)
    port = _read_number(environ, "MASTER_PORT", default=DEFAULT_PORT, low=1, high=_MAX_PORT)
    address = environ.get("MASTER_ADDR", "").strip()
    if not address:
        raise SettingsError(
            f"NNODES={count}: MASTER_ADDR must be the address at which the other nodes reach "
            "node 0."
        )
    return Nodes(count=count, rank=rank, address=address, port=port)


def check_nodes(nodes: Nodes, settings: Settings, plan: BatchPlan) -> None:
    """Refuse settings that do not work on several nodes.

    Raises:
        SettingsError: DEEPSPEED=none, micro-batches by rows, or no run folder to join.
    """
    if nodes.count == 1:
        return
    given = f"NNODES={nodes.count}"
    if settings.deepspeed == "none":
        raise SettingsError(
            f"{given} DEEPSPEED=none: several processes need DEEPSPEED=zero1, zero2 or zero3."
        )
    if not plan.tokens_per_micro_batch:
        raise SettingsError(
            f"{given}: micro-batches must be cut by tokens, which works with any number of "
            "processes; unset PER_DEVICE_TRAIN_BATCH_SIZE, or set HANABI_TOKENS_PER_MICRO_BATCH "
            "above 0."
        )
    if nodes.rank and settings.output_dir is None:
        raise SettingsError(
            f"{given} NODE_RANK={nodes.rank}: OUTPUT_DIR must name the run folder of node 0, on a "
            "file system that all nodes share, because this node's processes read its "
            "settings.json."
        )


def _read_number(
    environ: Mapping[str, str], name: str, *, default: int | None, low: int, high: int
) -> int:
    """Read a whole number from `low` to `high`; None as `default` makes it required."""
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    is_number = text.isascii() and text.isdecimal()
    if not is_number or not low <= int(text) <= high:
        raise SettingsError(f"{name}={text!r}: a whole number from {low} to {high}.")
    return int(text)


def is_one_process(settings: Settings, nodes: Nodes) -> bool:
    """Tell whether the trainer needs no launcher."""
    return settings.nproc_per_node == 1 and nodes.count == 1


def trainer_argv(
    settings: Settings, settings_path: Path, extra_args: list[str], nodes: Nodes
) -> list[str]:
    """Return the command line of the trainer: one process, or torchrun.

    torchrun is started as a module, so that this environment's version runs.

    Args:
        settings: The settings.
        settings_path: The file from which the trainer reads them.
        extra_args: Options for ms-swift.
        nodes: The machines of the trainer.
    """
    trainer = ["-m", "hanabi_grpo.training.main", "--settings", str(settings_path), *extra_args]
    if is_one_process(settings, nodes):
        return [sys.executable, *trainer]
    if nodes.count == 1:
        machines = ["--standalone"]
    else:
        machines = [
            "--nnodes",
            str(nodes.count),
            "--node_rank",
            str(nodes.rank),
            "--master_addr",
            nodes.address,
            "--master_port",
            str(nodes.port),
        ]
    processes = ["--nproc_per_node", str(settings.nproc_per_node)]
    return [sys.executable, "-m", "torch.distributed.run", *machines, *processes, *trainer]
