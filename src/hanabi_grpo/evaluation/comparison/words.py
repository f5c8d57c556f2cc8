"""Arms and reference lines as they are typed."""

import glob
import math
from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.run_folder import TRAIN

_ARM_FORM = "give NAME=RUN,RUN,…, e.g. 'shared=outputs/b-0,outputs/b-1,outputs/b-2'"


def parse_arms(texts: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of every arm by its name, in the order typed; a folder with a `*` stands for all that match.

    Example:
        parse_arms(["per player=outputs/a-0,outputs/a-1"]) == {"per player": [Path("outputs/a-0"), Path("outputs/a-1")]}

    Raises:
        SettingsError: No arm, an arm without a name or folder, nothing matches, or a name or a folder is there twice: a
            run in two places would count as two seeds.
    """
    if not texts:
        raise SettingsError(f"no arm to compare; {_ARM_FORM}.")
    arms: dict[str, list[Path]] = {}
    owners: dict[Path, str] = {}
    for text in texts:
        name, folders = _parse_arm(text)
        if name in arms:
            raise SettingsError(f"two arms are called {name!r}; give each a name of its own.")
        for folder in folders:
            real = folder.resolve()
            real = real.parent if real.name == TRAIN else real  # `demo` and `demo/train` are one run
            if real in owners:
                raise SettingsError(
                    f"{folder}: is in {owners[real]!r} and again in {name!r}; a run is one seed of one arm."
                )
            owners[real] = name
        arms[name] = folders
    return arms


def parse_reference(text: str) -> tuple[str, float]:
    """Return label and height of a level line.

    Example:
        parse_reference("hint-bot=2.632") == ("hint-bot", 2.632)

    Raises:
        SettingsError: No label, or no finite number.
    """
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name.strip() or not math.isfinite(value):
        raise SettingsError(f"--reference {text!r}: give NAME=SCORE, e.g. hint-bot=2.632.")
    return name.strip(), value


def _parse_arm(text: str) -> tuple[str, list[Path]]:
    name, equals, rest = text.partition("=")
    name = " ".join(name.split())
    if not equals or not name:
        raise SettingsError(f"{text!r}: an arm needs a name and runs; {_ARM_FORM}.")
    folders: list[Path] = []
    for word in (part.strip() for part in rest.split(",")):
        if not word:
            raise SettingsError(f"{text!r}: a folder name is empty; {_ARM_FORM}.")
        found = sorted(path for path in map(Path, glob.glob(word)) if path.is_dir()) if "*" in word else [Path(word)]
        if not found:
            raise SettingsError(f"{word!r} of arm {name!r}: no folder matches.")
        folders += found
    return name, folders
