"""Artifacts by their words, and where run folders on this disk have them. No W&B library is needed here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.tracking.record import RECORD, ArtifactRecord, read_record

LATEST = "latest"
_PART = r"[^/:,\s]{1,128}"
_WORD = re.compile(rf"wandb:(?:({_PART})/)?({_PART})/({_PART})(?::({_PART}))?")
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})", re.ASCII)
_DEPTH = 3
"""Folders below outputs/ in which run folders are looked for, e.g. outputs/demo-1/train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactWord:
    """One artifact, as it was typed."""

    entity: str
    """Team or user; empty: the one of the key."""
    project: str
    name: str
    alias: str

    def __post_init__(self) -> None:
        """Refuse parts that would name another folder than one below the downloads; W&B's answers are asked too.

        Raises:
            SettingsError: A part holds a slash or consists of dots.
        """
        for part in (self.entity, self.project, self.name, self.alias):
            if set(part) & set("/\\\0") or (part and set(part) == {"."}):
                raise SettingsError(
                    f"wandb:{self.path}: {part!r} names no folder; give wandb:entity/project/name:alias, e.g. "
                    "wandb:team/hanabi-grpo/laptop-adapters:best, and look at WANDB_ENTITY."
                )

    @property
    def path(self) -> str:
        """What W&B calls it, e.g. "team/hanabi/laptop-adapters:latest"."""
        return "/".join(part for part in (self.entity, self.project, f"{self.name}:{self.alias}") if part)

    @property
    def is_version(self) -> bool:
        """Whether the alias is a version, which W&B numbers and never moves."""
        return _VERSION.fullmatch(self.alias) is not None

    def folder(self, root: Path) -> Path:
        """Return where all versions of this name are kept."""
        return root / (self.entity or "-") / self.project / self.name

    def downloaded(self, root: Path) -> Path | None:
        """Return the folder of a version that was downloaded before; None for other aliases, which move."""
        folder = self.folder(root) / self.alias
        return folder if self.is_version and folder.is_dir() else None

    def versions(self, root: Path) -> list[str]:
        """Return the versions of this name that were downloaded before, oldest first."""
        found = [path.name for path in self.folder(root).glob("v*") if _VERSION.fullmatch(path.name)]
        return sorted(found, key=lambda name: int(name[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArtifact:
    """An artifact as a run folder of this disk has it."""

    run: Path
    folder: Path
    """`artifacts/step_N` of the run."""


def read_artifact_word(word: str, entity: str = "") -> ArtifactWord:
    """Read `wandb:entity/project/name:alias`.

    Args:
        word: Entity and alias may be left out.
        entity: The one of this shell, WANDB_ENTITY.

    Raises:
        SettingsError: It is none.
    """
    match = _WORD.fullmatch(word)
    parts = [part or "" for part in match.groups()] if match else []
    if not parts:
        raise SettingsError(
            f"{word!r}: give wandb:entity/project/name:alias, e.g. wandb:team/hanabi-grpo/laptop-adapters:best."
        )
    return ArtifactWord(entity=parts[0] or entity, project=parts[1], name=parts[2], alias=parts[3] or LATEST)


def find_recorded(wanted: ArtifactWord, roots: Sequence[Path]) -> list[RecordedArtifact]:
    """Return the artifacts of that name and alias whose folders are on this disk, at most one of a run.

    A run that was recorded without an entity may belong to any. `latest` is the last one of that name, as at W&B.

    Args:
        wanted: What was typed.
        roots: Run folders, or folders of them.
    """
    found: dict[Path, RecordedArtifact] = {}
    for run in _run_folders(roots):
        record = read_record(run)
        if record.project != wanted.project or (wanted.entity and record.entity not in ("", wanted.entity)):
            continue
        named = [one for one in record.artifacts if one.name == wanted.name and (run / one.folder).is_dir()]
        matching = [one for one in named if _goes_by(one, wanted, is_last=one is named[-1])]
        if matching:
            folder = run / matching[-1].folder
            found.setdefault(folder.resolve(), RecordedArtifact(run=run, folder=folder))
    return list(found.values())


def _goes_by(one: ArtifactRecord, wanted: ArtifactWord, *, is_last: bool) -> bool:
    return is_last if wanted.alias == LATEST else wanted.alias in one.aliases


def _run_folders(roots: Sequence[Path]) -> list[Path]:
    patterns = ["/".join(["*"] * depth + [RECORD]) for depth in range(_DEPTH + 1)]
    return list(
        dict.fromkeys(path.parent for root in roots for pattern in patterns for path in sorted(root.glob(pattern)))
    )
