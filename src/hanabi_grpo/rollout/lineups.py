"""Line-ups as people type them: one reference per seat, e.g. "served" or "player_0@latest,iggi".

One alone fills every seat: that is a team, and each player takes its own seat. A list is rotated through all its seat
orders where games are counted.
"""

from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.refs import CheckpointRef, Ref, Role, ScriptRef, parse_ref
from hanabi_grpo.tracking.checkpoints import local_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUp:
    """Who sits where before any rotation."""

    text: str
    """As it was typed; what tables call it."""
    refs: tuple[Ref, ...]
    """One per seat; what lay elsewhere is a local folder here."""

    @property
    def words(self) -> tuple[str, ...]:
        """The references as text."""
        return tuple(map(str, self.refs))

    @property
    def label(self) -> str:
        """What tables call it where nobody named it: its text, with folders by their last two names."""
        return ",".join(short_name(word.strip()) for word in self.text.split(","))

    def orders(self, *, rotate: bool = True) -> list[tuple[Ref, ...]]:
        """Return the different seat orders: every rotation of the line-up, or only the one that was typed."""
        count = len(self.refs) if rotate else 1
        return list(dict.fromkeys(self.refs[start:] + self.refs[:start] for start in range(count)))

    @property
    def needs_server(self) -> bool:
        """True unless scripts and people fill every seat."""
        return not all(isinstance(ref, ScriptRef) or ref is Role.HUMAN for ref in self.refs)


def parse_line_up(text: str, num_players: int, *, env: str = "hanabi", human: bool = False) -> LineUp:
    """Read a line-up.

    Args:
        text: One reference for every seat, or one per seat, with commas.
        num_players: Seats.
        env: Name of the environment, whose scripts may play.
        human: Whether a person may sit there.

    Raises:
        SettingsError: An unknown reference, not one per seat, or a checkpoint that cannot be had.
    """
    typed = [word.strip() for word in text.split(",")]
    if len(typed) not in (1, num_players):
        raise SettingsError(
            f"line-up {text!r}: {len(typed)} words for {num_players} players; give one for every seat, or one each."
        )
    # Each once: what is elsewhere may move between two looks.
    found = {word: local_ref(read_player_ref(word, text, env=env, human=human)) for word in dict.fromkeys(typed)}
    refs = tuple(found[word] for word in typed)
    return LineUp(text=text.strip(), refs=refs * num_players if len(refs) == 1 else refs)


def read_player_ref(word: str, line_up: str, *, env: str = "hanabi", human: bool = False) -> Ref:
    """Read one reference of a line-up; what lies elsewhere is not fetched.

    Raises:
        SettingsError: It is none, or a folder that is not there.
    """
    where = f"line-up {line_up!r}"
    if word == Role.HUMAN and not human:
        raise SettingsError(f"{where}: people play with hanabi-grpo play; here nobody can be asked.")
    roles = (Role.SERVED, Role.BASE, *([Role.HUMAN] if human else []))
    ref = parse_ref(word, where=where, roles=roles, scripts=registry.get(env).policies, adapters=True)
    if isinstance(ref, CheckpointRef) and isinstance(ref.place, Path) and not ref.place.is_dir():
        raise SettingsError(f"{where}: {ref.place}: no such folder; give a run's folder or its checkpoint-N.")
    return ref


def short_name(word: str) -> str:
    """Return what a table or a chart calls a reference: a checkpoint by its last two folders."""
    try:
        ref = parse_ref(word, where="", roles=tuple(Role), scripts=(), adapters=True)
    except SettingsError:
        return word
    return ref.label if isinstance(ref, CheckpointRef) else word
