"""The README of an artifact: what the adapters are, how well they play, what they are not."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.settings.defaults import is_local_model

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)


_CARD = """\
# Players of {env}

LoRA adapters for language models that play {env}, trained with GRPO by hanabi-grpo.

| | |
|---|---|
{rows}

The score is of sampled training games, by the versions of the last steps; it is no evaluation.

```bash
hanabi-grpo evaluate FOLDER --own-server     # FOLDER: this one
```
"""


def card_text(env: str, facts: Mapping[str, Any]) -> str:
    """Return the card in Markdown, given what is known of the adapters by name."""
    return _CARD.format(env=env, rows="\n".join(f"| {name} | {table_cell(value)} |" for name, value in facts.items()))


def base_name(model: str) -> tuple[str, bool]:
    """Return the base model's name for publishing, and whether it is a hub name.

    A local model goes by the last part of its folder: whole paths name machines and people.

    Args:
        model: MODEL as it was trained on.
    """
    if HUB_NAME.fullmatch(model) and not is_local_model(model) and not Path(model).exists():
        return model, True
    return _NOT_IN_A_NAME.sub("-", Path(model).name) or "an unknown base model", False


def table_cell(value: object) -> str:
    """Return a value as a cell of a Markdown table."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
