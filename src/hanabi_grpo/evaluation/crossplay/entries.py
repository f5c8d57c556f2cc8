"""What is crossed: entries as people type them, the team of each cell, and the teams of the seat swap."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import LineUp, parse_line_up, short_name
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings.refs import AdapterRef, CheckpointRef, Ref, Role
from hanabi_grpo.types import player_name

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

    @property
    def fills_seats(self) -> bool:
        """Whether every seat gets an adapter of its own, if there is one."""
        return self.ref is Role.SERVED or (isinstance(self.ref, CheckpointRef) and self.ref.adapter is None)

    def adapter(self, player: int) -> Ref:
        """Return what puts one player's adapter into any seat; only where `fills_seats`."""
        if isinstance(self.ref, CheckpointRef):
            return replace(self.ref, adapter=player_name(player))
        return AdapterRef(adapter=player_name(player))


def parse_entries(texts: Sequence[str], num_players: int) -> tuple[Entry, ...]:
    """Read entries: a word each, or name=word.

    Raises:
        SettingsError: Fewer than two entries, an unknown word, a list of words, or a name or word that is there twice.
    """
    if not 2 <= len(texts) <= MAX_ENTRIES:
        raise SettingsError(
            f"{len(texts)} entries: cross-play needs 2 to {MAX_ENTRIES}, e.g. hanabi-grpo cross-play iggi piers served"
        )
    entries = _with_own_labels([_parse(text, num_players) for text in texts])
    for what, values in (("name", [entry.label for entry in entries]), ("entry", [entry.word for entry in entries])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            step = "name them apart: NAME=ENTRY" if what == "name" else "give each entry once"
            raise SettingsError(f"{what} {twice!r} is there {values.count(twice)} times; {step}.")
    return entries


def cell_line_up(row: Entry, column: Entry, num_players: int) -> LineUp:
    """Return the team of a cell: the row's entry in seat 0, the column's in every other seat."""
    return _line_up((row.ref, *[column.ref] * (num_players - 1)))


def swap_orders(num_players: int) -> list[tuple[int, ...]]:
    """Return whose adapters sit in the seats of the teams that an entry is compared with, beside its straight team.

    For two players both adapters in both seats; for more every cyclic shift.

    Example:
        swap_orders(2) == [(1, 0), (0, 0), (1, 1)] and swap_orders(3) == [(1, 2, 0), (2, 0, 1)]
    """
    if num_players == 2:
        return [(1, 0), (0, 0), (1, 1)]
    seats = range(num_players)
    return [tuple((seat + shift) % num_players for seat in seats) for shift in seats[1:]]


def swap_line_up(entry: Entry, order: Sequence[int]) -> LineUp:
    """Return the team with an entry's adapters in other seats; see `swap_orders`."""
    return _line_up(tuple(entry.adapter(player) for player in order))


def _line_up(refs: tuple[Ref, ...]) -> LineUp:
    return LineUp(text=",".join(map(str, refs)), refs=refs)


def unit_of(entries: Sequence[Entry]) -> str:
    """Return what the error over entries is over: "training seeds" when each is a checkpoint of a run of its own."""
    runs = [entry.run for entry in entries]
    return "training seeds" if None not in runs and len(set(runs)) == len(runs) else "entries"


def _parse(text: str, num_players: int) -> tuple[Entry, bool]:
    """Return an entry, and whether a person named it."""
    label, word = _split(text)
    if "," in word:
        raise SettingsError(
            f"entry {text!r}: an entry is one word; cross-play makes the pairs itself. For a list of different players "
            "there is hanabi-grpo evaluate."
        )
    ref = parse_line_up(word, num_players).refs[0]
    if isinstance(ref, CheckpointRef) and isinstance(ref.place, Path):
        ref = replace(ref, place=newest_checkpoint(ref.place))
    return Entry(label=short_name(str(ref)) if label is None else label, ref=ref), label is not None


def _split(text: str) -> tuple[str | None, str]:
    label, equals, word = text.strip().partition("=")
    # A folder may have "=" in its name.
    if not equals or "/" in label or Path(text.strip()).is_dir():
        return None, text.strip()
    label = label.strip()
    if not 0 < len(label) <= _MAX_LABEL or not label.isprintable():
        raise SettingsError(f"entry {text!r}: a name has 1 to {_MAX_LABEL} visible characters.")
    return label, word.strip()


def _with_own_labels(parsed: Sequence[tuple[Entry, bool]]) -> tuple[Entry, ...]:
    """Give checkpoints whose last two folders are the same their whole path as a name."""
    labels = [entry.label for entry, _ in parsed]
    return tuple(
        entry if named or labels.count(entry.label) == 1 else replace(entry, label=entry.word)
        for entry, named in parsed
    )
