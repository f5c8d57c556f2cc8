"""A trainer on several machines (nodes): the variables of torchrun, and what each node's command
does with them.

Node 0 does all that one machine does: it makes and locks the run folder, waits for the servers,
writes settings.json. The others join it: their processes read that file of the same run folder,
which all nodes must see under one path."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import BatchPlan, Settings

DEFAULT_PORT = 29500
"""torchrun's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of one trainer, and which of them this is."""

    count: int = 1
    rank: int = 0
    """0: this one makes the run folder, which the others join."""
    address: str = ""
    """Of node 0, as the others reach it."""
    port: int = DEFAULT_PORT


def read_nodes(environ: Mapping[str, str] = os.environ) -> Nodes:
    """Read NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; only the first counts while it is 1 or
    unset.
    """
    count = _number(environ, "NNODES", 1, 1, 4096)
    if count == 1:
        return Nodes()
    rank = _number(environ, "NODE_RANK", None, 0, count - 1)
    port = _number(environ, "MASTER_PORT", DEFAULT_PORT, 1, 65535)
    address = environ.get("MASTER_ADDR", "").strip()
    if not address:
        raise SettingsError(
            f"NNODES={count}: MASTER_ADDR must be the address of node 0 as the other nodes reach "
            "it."
        )
    return Nodes(count=count, rank=rank, address=address, port=port)


def check_nodes(nodes: Nodes, settings: Settings, plan: BatchPlan) -> None:
    """Refuse, by a SettingsError, what cannot be trained with on several nodes."""
    if nodes.count == 1:
        return
    many = f"NNODES={nodes.count}"
    if settings.deepspeed == "none":
        raise SettingsError(
            f"{many} DEEPSPEED=none: several processes need DEEPSPEED=zero1, zero2 or zero3."
        )
    if not plan.tokens_per_micro_batch:
        raise SettingsError(
            f"{many}: micro-batches must be cut by tokens, which fits any number of processes; "
            "unset "
            "PER_DEVICE_TRAIN_BATCH_SIZE, or set HANABI_TOKENS_PER_MICRO_BATCH above 0."
        )
    if nodes.rank and settings.output_dir is None:
        raise SettingsError(
            f"{many} NODE_RANK={nodes.rank}: OUTPUT_DIR must name the run folder of node 0, in a "
            "file system that all "
            "nodes share; its settings.json is what this node's processes read."
        )


def _number(source: Mapping[str, str], name: str, default: int | None, low: int, high: int) -> int:
    text = source.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
        raise SettingsError(f"{name}={text!r}: a whole number from {low} to {high}.")
    return int(text)


def is_one_process(settings: Settings, nodes: Nodes) -> bool:
    """Tell whether the trainer needs no launcher."""
    return settings.nproc_per_node == 1 and nodes.count == 1


def trainer_argv(
    settings: Settings, settings_path: Path, extra_args: list[str], nodes: Nodes
) -> list[str]:
    """Return the trainer's command line: one process, or torchrun (by its module, so of this
    environment).
    """
    launcher = []
    if not is_one_process(settings, nodes):
        where = [
            "--nnodes",
            str(nodes.count),
            "--node_rank",
            str(nodes.rank),
            "--master_addr",
            nodes.address,
        ]
        where = [*where, "--master_port", str(nodes.port)] if nodes.count > 1 else ["--standalone"]
        launcher = [
            "-m",
            "torch.distributed.run",
            *where,
            "--nproc_per_node",
            str(settings.nproc_per_node),
        ]
    return [
        sys.executable,
        *launcher,
        "-m",
        "hanabi_grpo.training.main",
        "--settings",
        str(settings_path),
        *extra_args,
    ]
