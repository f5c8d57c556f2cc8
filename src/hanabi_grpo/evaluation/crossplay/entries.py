"""What is crossed: entries as people type them, and the line-up of each cell."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.client.lineups import LineUp, parse_line_up, short_name
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings.refs import CheckpointRef, Ref

MAX_ENTRIES = 64
_MAX_LABEL = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row and column of the matrix.

    Example:
        Entry(label="seed 1", ref=parse_checkpoint("outputs/laptop-a/checkpoint-500"))
    """

    label: str
    ref: Ref
    """A run's folder stands here as its newest checkpoint, which may not change on the way."""

    @property
    def word(self) -> str:
        """The reference as text."""
        return str(self.ref)

    @property
    def run(self) -> Path | None:
        """The run folder that a checkpoint belongs to; None: no checkpoint."""
        if isinstance(self.ref, CheckpointRef) and isinstance(self.ref.place, Path):
            return self.ref.place.resolve().parent
        return None


def parse_entries(texts: Sequence[str], setup: Setup[Any]) -> tuple[Entry, ...]:
    """Read entries: a word each, or name=word. Checkpoints that share a label get their whole path.

    Raises:
        SettingsError: Fewer than two entries, an unknown word, a list of words, or a name or word that is there twice.
    """
    if not 2 <= len(texts) <= MAX_ENTRIES:
        raise SettingsError(
            f"{len(texts)} entries: cross-play needs 2 to {MAX_ENTRIES}, e.g. hanabi-grpo cross-play iggi piers served"
        )
    parsed = [_parse(text, setup) for text in texts]
    labels = [label or short_name(str(ref)) for label, ref in parsed]
    entries = tuple(
        Entry(label=short if label or labels.count(short) == 1 else str(ref), ref=ref)
        for (label, ref), short in zip(parsed, labels, strict=True)
    )
    for entry in entries:
        if not entry.label.isprintable():
            raise SettingsError(
                f"entry {entry.label!r}: a name has 1 to {_MAX_LABEL} visible characters; name it: NAME=ENTRY."
            )
    for what, values in (("name", [entry.label for entry in entries]), ("entry", [entry.word for entry in entries])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            step = "name them apart: NAME=ENTRY" if what == "name" else "give each entry once"
            raise SettingsError(f"{what} {twice!r} is there {values.count(twice)} times; {step}.")
    return entries


def cell_line_up(row: Entry, column: Entry, num_players: int) -> LineUp:
    """Return the line-up of a cell: the row's entry in seat 0, the column's in every other seat."""
    refs = (row.ref, *[column.ref] * (num_players - 1))
    return LineUp(text=",".join(map(str, refs)), refs=refs)


def unit_of(entries: Sequence[Entry]) -> str:
    """Return what the error over entries is over: "training seeds" when each is a checkpoint of a run of its own."""
    runs = [entry.run for entry in entries]
    return "training seeds" if None not in runs and len(set(runs)) == len(runs) else "entries"


def _parse(text: str, setup: Setup[Any]) -> tuple[str, Ref]:
    """Return the name that a person gave, "" for none, and the reference."""
    label, equals, word = text.strip().partition("=")
    label, word = label.strip(), word.strip()
    # A folder may have "=" in its name.
    if not equals or "/" in label or Path(text.strip()).is_dir():
        label, word = "", text.strip()
    elif not 0 < len(label) <= _MAX_LABEL:
        raise SettingsError(f"entry {text!r}: a name has 1 to {_MAX_LABEL} visible characters.")
    if "," in word:
        raise SettingsError(
            f"entry {text!r}: an entry is one word; cross-play makes the pairs itself. For a list of different players "
            "there is hanabi-grpo evaluate."
        )
    ref = parse_line_up(word, setup.spec.num_players, env=setup.env).refs[0]
    if isinstance(ref, CheckpointRef) and isinstance(ref.place, Path):
        ref = replace(ref, place=newest_checkpoint(ref.place))
    return label, ref
