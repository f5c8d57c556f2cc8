"""A trainer whose pushes of player 1 are stale from version 1 on: the server gets version 0's bytes each time.

Everything else is real, and every receipt is right for the bytes that were sent. Only the logprobs can tell.
"""

import sys

import torch
from peft import PeftModel

from hanabi_grpo.training import link
from hanabi_grpo.training.main import main as train_main

_real_export = link.export_adapter
_first: dict[str, tuple[bytes, dict[str, object]]] = {}


def _stale_export(model: PeftModel, name: str, dtype: torch.dtype) -> tuple[bytes, dict[str, object]]:
    exported = _real_export(model, name, dtype)
    if name != "player_1":
        return exported
    return _first.setdefault(name, exported)


def main(argv: list[str]) -> int:
    link.export_adapter = _stale_export
    return train_main(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
