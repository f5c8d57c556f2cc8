"""Line-ups as people type them: one word per seat, e.g. "served", "player_0@latest,iggi" or "outputs/run,hint-bot".

| word | who plays |
|---|---|
| a script, e.g. `iggi` | that bot |
| `served` | the rollout server's newest adapter of this seat |
| `player_1`, `player_1@latest`, `player_1@7` | that adapter of the server, in whatever seat it is put |
| `base` | the server's model without an adapter |
| `outputs/run`, `outputs/run/checkpoint-50` | that checkpoint's adapter of this seat; a run stands for its newest |
| `outputs/run/checkpoint-50:player_1` | that adapter of it, in whatever seat it is put |
| `wandb:team/project/name:best`, `hf:org/repo` | the same from elsewhere, see `remote_checkpoints` |
| `human` | whoever sits at the terminal; only `hanabi-grpo play` |

One word alone fills every seat: that is a team, and everybody sits in the own seat. A list is rotated through all its
seat orders where games are counted.
"""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.seating import BASE
from hanabi_grpo.tracking.remote_checkpoints import local_word
from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, player_names

SERVED = "served"
HUMAN = "human"
_ADAPTER = re.compile(rf"(player_[0-{MAX_PLAYERS - 1}]|{SHARED_ADAPTER})(?:@(latest|[0-9]{{1,12}}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUp:
    """Who sits where before any rotation."""

    text: str
    """As it was typed; what tables call it."""
    words: tuple[str, ...]
    """One per seat; what lay elsewhere is a local folder here."""

    def orders(self, *, rotate: bool = True) -> list[tuple[str, ...]]:
        """Return the different seat orders: every rotation of the words, or only the one that was typed."""
        count = len(self.words) if rotate else 1
        return list(dict.fromkeys(self.words[start:] + self.words[:start] for start in range(count)))

    @property
    def needs_server(self) -> bool:
        """True unless scripts and people fill every seat."""
        return not all(word in SCRIPTED or word == HUMAN for word in self.words)


def parse_line_up(text: str, num_players: int, *, human: bool = False) -> LineUp:
    """Read a line-up.

    Args:
        text: One word for every seat, or one per seat, with commas.
        num_players: Seats.
        human: Whether a person may sit there.

    Raises:
        SettingsError: A word that is none, or not one per seat, or that cannot be fetched.
    """
    typed = [word.strip() for word in text.split(",")]
    if len(typed) not in (1, num_players):
        raise SettingsError(
            f"line-up {text!r}: {len(typed)} words for {num_players} players; give one for every seat, or one each."
        )
    # Each once: what is elsewhere may move between two looks.
    fetched = {word: local_word(word) for word in dict.fromkeys(typed)}
    words = tuple(fetched[word] for word in typed)
    for word in words:
        _check(word, text, human=human)
    return LineUp(text=text.strip(), words=words * num_players if len(words) == 1 else words)


def adapter_word(word: str) -> tuple[str, int | None] | None:
    """Return adapter and version (None: the newest) of a word that names one of the server's, else None."""
    match = _ADAPTER.fullmatch(word)
    if match is None:
        return None
    return match[1], None if match[2] in (None, "latest") else int(match[2])


def checkpoint_word(word: str) -> tuple[Path, str | None] | None:
    """Return folder and adapter (None: that of the seat) of a word that names a checkpoint or a run, else None."""
    path, colon, adapter = word.rpartition(":")
    if colon and adapter in (*player_names(MAX_PLAYERS), SHARED_ADAPTER):
        return Path(path), adapter
    return (Path(word), None) if "/" in word or (word and Path(word).is_dir()) else None


def short_name(word: str) -> str:
    """Return what a table or a chart calls a word: a checkpoint by its last two folders."""
    found = checkpoint_word(word)
    if word in SCRIPTED or found is None:
        return word
    folder, adapter = found
    return "/".join(folder.parts[-2:]) + (f":{adapter}" if adapter else "")


def _check(word: str, text: str, *, human: bool) -> None:
    if word in (*SCRIPTED, SERVED, BASE) or adapter_word(word) is not None:
        return
    if word == HUMAN:
        if human:
            return
        raise SettingsError(f"line-up {text!r}: people play with hanabi-grpo play; here nobody can be asked.")
    found = checkpoint_word(word)
    if found is not None:
        if found[0].is_dir():
            return
        raise SettingsError(f"line-up {text!r}: {found[0]}: no such folder; give a run's folder or its checkpoint-N.")
    known = (*SCRIPTED, SERVED, BASE, *([HUMAN] if human else []))
    close = difflib.get_close_matches(word, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingsError(
        f"line-up {text!r}: {word!r} is unknown; allowed are {', '.join(known)}, an adapter such as player_0@latest, "
        f"the folder of a checkpoint, or a word such as hf:org/repo.{hint}"
    )
