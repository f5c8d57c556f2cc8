"""`hanabi-grpo digest`: SHA-256 digests that are equal for two runs with the same seed."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.runs.digest import RunDigest, run_digest
from hanabi_grpo.runs.run_folder import run_home


def digest(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders or checkpoints."),
    ],
) -> None:
    """Print digests of a run's metrics and adapters, which are equal for runs with the same seed.

    Times, rates, memory and cache hits are excluded.
    """
    say = sayer(make_console())
    first: RunDigest | None = None
    for run in runs:
        found = run_digest(run_home(run))
        say(f"{run}")
        say(f"  metrics   {found.metrics}")
        for name, adapter in found.adapters.items():
            say(f"  {name}  {adapter}")
        if first is None:
            first = found
        else:
            differences = first.differences(found)
            verdict = "equal to the first"
            if differences:
                verdict = f"differs from the first in {', '.join(differences)}"
            say(f"  {verdict}")
