"""Words for checkpoints, taken apart: a folder, or what lies elsewhere. Nothing is read or asked here."""

import re
from pathlib import Path

from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, player_names

WANDB, HUB = "wandb:", "hf:"
_SEATED = re.compile(rf"(player_[0-9]+|{SHARED_ADAPTER})\s*=\s*(.*)", re.ASCII)
_CHOSEN = re.compile(r"(.+):([A-Za-z0-9_]{1,64})", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+")


def is_remote(word: str | Path) -> bool:
    """Tell whether a word names something that lies elsewhere."""
    return str(word).startswith((WANDB, HUB))


def split_seat(entry: str) -> tuple[str | None, str]:
    """Return the player before `=`, None where there is none, and the rest.

    Example:
        split_seat("player_1=hf:org/repo") == ("player_1", "hf:org/repo")
    """
    match = _SEATED.fullmatch(entry)
    return (match[1], match[2]) if match else (None, entry)


def split_adapter(word: str) -> tuple[str, str | None]:
    """Return a word without the adapter that is chosen behind it, and that adapter.

    Behind a remote word only the name of a player is one: other colons belong to the word.

    Example:
        split_adapter("wandb:team/hanabi/laptop:best") == ("wandb:team/hanabi/laptop:best", None)
        split_adapter("outputs/run:player_1") == ("outputs/run", "player_1")
    """
    match = _CHOSEN.fullmatch(word)
    if match is None or (is_remote(word) and match[2] not in (*player_names(MAX_PLAYERS), SHARED_ADAPTER)):
        return word, None
    return match[1], match[2]


def short_name(folder: Path) -> str:
    """Return what metrics call a checkpoint, e.g. "checkpoint-50"; of wandb:team/hanabi/laptop:best "laptop.best"."""
    if not is_remote(folder):
        return folder.name or "checkpoint"
    text = str(folder)
    own = text.partition("/")[2] if text.startswith(HUB) else text.rpartition("/")[2]
    return _NOT_IN_A_NAME.sub(".", own) or "checkpoint"
