"""The run at W&B: opened, refused or kept on this disk; and what is written into it.

`wandb.init` raises CommError for everything: its text alone tells a service that cannot be reached, or answers with 5xx
only, from the service's own no (key, entity, project). `tests/unit/test_tracking_backend.py` fails when a new version
words it differently.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.tracking.artifact import commit
from hanabi_grpo.tracking.board import sectioned
from hanabi_grpo.tracking.record import WandbRecord

INIT_SECONDS = 15
"""Until a run that nobody answers for is kept on this disk; WANDB_INIT_TIMEOUT says otherwise."""
FINISH_SECONDS = 120
"""For what is still on its way when training ends; WANDB_FINISH_TIMEOUT says otherwise."""
MARGIN_SECONDS = 30.0
"""For drawing and closing, beyond the service's time."""
_NO_ANSWER = re.compile(
    r"timed out|deadline exceeded|giving up after|dial tcp|connection re|no such host|\bEOF\b|error (5\d\d|408|429)",
    re.IGNORECASE,
)


class Unreachable(Exception):
    """W&B did not answer in time."""


def wandb_environ(run_folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a process's environment with W&B's files in the run folder, its time limits, and without our own key."""
    folder = run_folder.resolve()
    defaults = {
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
        "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
        "WANDB_INIT_TIMEOUT": str(INIT_SECONDS),
        "WANDB_FINISH_TIMEOUT": str(FINISH_SECONDS),
        # Crash reports to W&B's maker are not what WANDB_MODE=offline promises.
        "WANDB_ERROR_REPORTING": "false",
    }
    own = {name: value for name, value in environ.items() if name != "HANABI_API_KEY"}
    return {**defaults, **own}


def time_limit(environ: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds that a variable of W&B's says; the default where it says none."""
    try:
        return max(0.0, float(environ.get(name, default)))
    except ValueError:
        return default


class WandbRun:
    """One open run."""

    def __init__(self, run: Any) -> None:
        """Take what `open_run` opened."""
        self._run = run

    @property
    def mode(self) -> str:
        """Where rows go: "online" or "offline"."""
        return "offline" if self._run.offline else "online"

    @property
    def url(self) -> str:
        """The run's page; empty offline."""
        return "" if self._run.offline else str(self._run.url or "")

    @property
    def last_step(self) -> int:
        """The newest step that the service has of a run that is gone on with; 0 for a new one."""
        step = self._run.summary.get("step") if self._run.resumed else 0
        return int(step) if isinstance(step, int | float) else 0

    def log_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Send rows of `metrics.jsonl`."""
        for row in rows:
            self._run.log(sectioned(row))

    def log_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]], page: str) -> None:
        """Send sample games: a table, and the replay page."""
        import wandb

        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        # The page brings its own style and its own rules on what may run.
        self._run.log({"step": step, "samples/games": table, "samples/replay": wandb.Html(page, inject=False)})

    def log_pictures(self, step: int, pictures: Mapping[str, Path]) -> None:
        """Send pictures by name."""
        import wandb

        self._run.log({"step": step, **{f"charts/{name}": wandb.Image(str(path)) for name, path in pictures.items()}})

    def log_artifact(self, folder: Path, name: str, aliases: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Send every file of a folder as a `model` artifact; the folder must stay until the run is finished."""
        import wandb

        artifact = wandb.Artifact(name, type="model", metadata=dict(metadata))
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                within = path.relative_to(folder).as_posix()
                # Not copied: what is in artifacts/ does not change.
                artifact.add_file(str(path), name=within, policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact, aliases=list(aliases))

    def finish(self, exit_code: int) -> None:
        """Close the run.

        Raises:
            Unreachable: Not everything went up within WANDB_FINISH_TIMEOUT, or W&B's own process gave something up.
        """
        log = Path(self._run.settings.log_internal)
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError as error:
            raise Unreachable("not everything went up in time") from error
        if self.mode == "online" and (lost := _given_up(log)):
            raise Unreachable(lost)


def open_run(settings: Settings, run_folder: Path, record: WandbRecord, mode: str) -> WandbRun:
    """Open a run, or go on with the one of this id.

    Args:
        settings: WANDB_PROJECT, WANDB_ENTITY and WANDB_NAME from here; all of them become the run's config.
        run_folder: Holds W&B's files.
        record: Says the id.
        mode: "online" or "offline".

    Raises:
        SettingsError: W&B refuses key, entity or project.
        Unreachable: W&B did not answer in time.
    """
    import wandb

    try:
        run = wandb.init(
            project=settings.wandb_project,
            entity=settings.wandb_entity,
            name=settings.wandb_name or run_folder.resolve().name,
            mode="offline" if mode == "offline" else "online",
            id=record.id,
            resume="allow",
            dir=str(run_folder),
            config={**settings_values(settings), "commit": commit()},
            settings=wandb.Settings(
                console="off",
                quiet=True,
                # A diff of the checkout may hold anything; the commit is in the config.
                disable_git=True,
                disable_code=True,
                finish_timeout_raises=True,
                x_stats_pid=os.getppid(),
            ),
        )
    except (wandb.errors.Error, ValueError) as error:
        if isinstance(error, wandb.errors.CommError) and _NO_ANSWER.search(str(error)):
            # W&B's own process would still hold the id, and refuse it to the run that is recorded instead.
            wandb.teardown()
            raise Unreachable(str(error).splitlines()[0]) from error
        raise SettingsError(_refusal(settings, error)) from error
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return WandbRun(run)


def _given_up(log: Path) -> str:
    """Return what the log of W&B's own process says it could not send; `finish` itself says nothing of it."""
    try:
        lines = log.read_bytes().splitlines()
    except OSError:
        return ""
    for line in [line for line in lines if b'"level":"ERROR"' in line]:
        with suppress(ValueError):
            message = str(json.loads(line).get("msg", ""))
            # A request that failed may have been sent again; what was given up has a line of its own.
            if not message.startswith("api: "):
                return message
    return ""


def _refusal(settings: Settings, error: Exception) -> str:
    entity = f" WANDB_ENTITY={settings.wandb_entity!r}" if settings.wandb_entity else ""
    where = f"WANDB_PROJECT={settings.wandb_project!r}{entity}"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"{where}: W&B refuses this run ({reason}). Look at the key (.venv/bin/wandb login), the project and the "
        "entity; or record on this disk with WANDB_MODE=offline, or nowhere with REPORT_TO=none."
    )
