"""What the tiny model is made from, its hash, and the manifest of a finished folder."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "tiny_model.json"
_VERSION = 1
"""Raised when the architecture, the loss or the schedule changes, none of which a probe of the data would show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights, apart from the number of threads.

    Example:
        Recipe(preset="laptop", players=2, legal_moves=False, seed=0)
    """

    preset: str
    """The first board; the others are in `more_presets`."""
    players: int
    legal_moves: bool
    """Whether the prompts that it learns from list the legal moves."""
    seed: int
    steps: int = 900
    num_games: int = 6000
    """On each board."""
    noise: float = 0.4
    """Share of the teacher's moves that are random; they are learnt as well, so the start is legal but mediocre."""
    batch_size: int = 18
    """Conversations of one step."""
    single_turn_share: float = 0.4
    """Share of the steps, the first ones, that learn from conversations of one turn.

    An observation is the whole state, so a move can be learnt without the turns before it, and faster; the steps
    that follow teach to read the newest of several observations.
    """
    learning_rate: float = 3e-3
    more_presets: tuple[str, ...] = ()

    @property
    def presets(self) -> tuple[str, ...]:
        """All boards, in the order in which their words are numbered."""
        return (self.preset, *self.more_presets)

    def hash(self, probe: Any) -> str:
        """Return a short sha256 over the recipe and a probe of the data (JSON-able) that it makes."""
        fields = asdict(self)
        if not self.more_presets:
            # A recipe of one board has the hash that it had before there could be more.
            del fields["more_presets"]
        text = json.dumps([_VERSION, fields, probe], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_manifest(folder: Path, recipe: Recipe, recipe_hash: str) -> None:
    """Record the recipe and the sha256 of every file that is in the folder now."""
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    manifest = {"recipe_hash": recipe_hash, "recipe": asdict(recipe), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def problem_of(folder: Path, recipe_hash: str) -> str | None:
    """Return why the folder is not the finished result of this recipe, or None when it is."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        made_by, files = manifest["recipe_hash"], dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    if made_by != recipe_hash:
        return f"it was made by another recipe ({made_by}, wanted {recipe_hash})"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _sha256(path) != digest:
            return f"{name} is not the file that was written"
    return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
