"""Names that W&B takes, so that a bad one is found before it is asked (`wandb/sdk/artifacts/_validators.py`)."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from hanabi_grpo.settings.variables import split_list

PROJECT_ALLOWED = "1 to 128 characters, none of / \\ # ? % :, and not dots alone"
ARTIFACT_ALLOWED = "1 to 128 letters, digits, dots, dashes and underscores"
ALIASES_ALLOWED = "a comma list of words without / and :, none of them a version such as v3, which W&B gives itself"


def _project(name: str) -> str:
    # The name becomes a folder below outputs/downloads.
    if not 0 < len(name) <= 128 or set(name) & set("/\\#?%:\r\n") or set(name) == {"."}:
        raise ValueError("not a name of a project or an entity")
    return name


def _artifact(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name) or set(name) == {"."}:
        raise ValueError("not an artifact name")
    return name


def _aliases(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(set(name) & set("/:") or re.fullmatch(r"v[0-9]+", name) for name in names):
        raise ValueError("not aliases")
    return tuple(dict.fromkeys(names))


ProjectName = Annotated[str, AfterValidator(_project)]
EntityName = ProjectName
ArtifactName = Annotated[str, AfterValidator(_artifact)]
Aliases = Annotated[tuple[str, ...], BeforeValidator(split_list), AfterValidator(_aliases)]
