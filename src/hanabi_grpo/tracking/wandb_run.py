"""The run at W&B: opening it online or offline, and writing to it.

`wandb.init` raises CommError in all cases. Only its text distinguishes a service that cannot be
reached, or answers only with 5xx, from a refusal by the service (key, entity, project).
`tests/unit/test_tracking.py` fails if a new version changes the wording.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_LOG_BYTES, read_bytes
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.settings.secret_names import without_secrets
from hanabi_grpo.tracking.artifact import commit
from hanabi_grpo.tracking.record import WandbRecord

SECONDS = {
    # Until a run is recorded on this disk because W&B does not answer.
    "WANDB_INIT_TIMEOUT": 15,
    # For data that is still being sent when training ends.
    "WANDB_FINISH_TIMEOUT": 120,
    # Until a request to a service that does not answer is abandoned.
    "WANDB_HTTP_TIMEOUT": 15,
}
"""Defaults of W&B's time limits, in seconds; the environment overrides them."""

MARGIN_SECONDS = 30.0
"""Time for closing, in addition to the service's time."""

_OWN_VARIABLES = "WANDB_"
"""Prefix of the variables that W&B itself reads, including its key."""
_NO_ANSWER = re.compile(
    r"timed out|deadline exceeded|giving up after|dial tcp|connection re|no such "
    r"host|\bEOF\b|error (5\d\d|408|429)",
    re.IGNORECASE,
)
"""Matches the error text of a service that cannot be reached."""

_ERROR_LEVEL = b'"level":"ERROR"'
"""Marks an error in the log of W&B's own process."""
_REQUEST_FAILED = "api: "
"""Prefix of the message for a failed request, which may have been retried."""


class Unreachable(Exception):
    """W&B did not answer in time."""


def wandb_environ(run_folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that uses W&B.

    Args:
        run_folder: Where W&B's files go.
        environ: The environment of this process; its W&B variables take precedence.

    Returns:
        The environment with W&B's folders and time limits, and without any secrets except W&B's.
        Cloud credentials are removed, too: artifacts are uploaded to W&B itself, never to a bucket
        by reference.
    """
    folder = run_folder.resolve()
    defaults = {
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
        "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
        "WANDB_INIT_TIMEOUT": str(SECONDS["WANDB_INIT_TIMEOUT"]),
        "WANDB_FINISH_TIMEOUT": str(SECONDS["WANDB_FINISH_TIMEOUT"]),
        # Crash reports to W&B's developers would break the promise of WANDB_MODE=offline.
        "WANDB_ERROR_REPORTING": "false",
    }
    return {**defaults, **without_secrets(environ, keep=(_OWN_VARIABLES,))}


@contextmanager
def hidden_secrets() -> Iterator[None]:
    """Temporarily remove all secrets except W&B's from this process's environment.

    W&B's library starts its own process, which inherits the environment at that moment.
    """
    before = dict(os.environ)
    kept = without_secrets(before, keep=(_OWN_VARIABLES,))
    hidden = {name: value for name, value in before.items() if name not in kept}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def time_limit(environ: Mapping[str, str], name: str) -> float:
    """Return one of W&B's time limits, in seconds.

    Args:
        environ: The environment.
        name: A variable of `SECONDS`, whose value is used if the environment has no number.
    """
    try:
        return max(0.0, float(environ.get(name, SECONDS[name])))
    except ValueError:
        return SECONDS[name]


class WandbRun:
    """One open run."""

    def __init__(self, run: Any) -> None:
        """Wrap a run of the wandb library, see `open_run`."""
        self._run = run
        self.mode = "offline" if run.offline else "online"
        """Either "online" or "offline"."""
        self.url = "" if run.offline else str(run.url or "")
        """The run's page; empty offline."""

    def log_row(self, row: Mapping[str, Any]) -> None:
        """Send a row of `metrics.jsonl`, without null values."""
        self._run.log({name: value for name, value in row.items() if value is not None})

    def log_samples(self, step: int, page: str) -> None:
        """Send sample games, an HTML page."""
        import wandb

        # The page has its own style and its own content security policy.
        self._run.log({"step": step, "samples/replay": wandb.Html(page, inject=False)})

    def log_artifact(
        self, folder: Path, name: str, aliases: Sequence[str], metadata: Mapping[str, Any]
    ) -> None:
        """Send every file of a folder as a `model` artifact.

        Args:
            folder: The folder, which must exist until the run is finished.
            name: The artifact's name.
            aliases: Its aliases.
            metadata: The artifact's metadata.
        """
        import wandb

        artifact = wandb.Artifact(name, type="model", metadata=dict(metadata))
        # Not copied, because the content of artifacts/ does not change.
        artifact.add_dir(str(folder), policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact, aliases=list(aliases))

    def save_files(self, folder: Path, names: Sequence[str]) -> None:
        """Send files as they are now; missing files are skipped.

        Args:
            folder: The folder of the files, which must exist until the run is finished.
            names: Names of the files in the folder and at W&B.
        """
        for name in names:
            if (folder / name).is_file():
                self._run.save(str(folder / name), base_path=str(folder), policy="now")

    def finish(self, exit_code: int) -> None:
        """Close the run.

        Raises:
            Unreachable: Not everything was sent within WANDB_FINISH_TIMEOUT.
        """
        log = Path(self._run.settings.log_internal)
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError as error:
            raise Unreachable("not everything was uploaded in time") from error
        if self.mode == "online":
            failure = _given_up(log)
            if failure:
                raise Unreachable(failure)


def open_run(settings: Settings, run_folder: Path, record: WandbRecord, mode: str) -> WandbRun:
    """Open a run, or continue the run with the record's id.

    Args:
        settings: The run's settings, with project, entity and name; they become the run's config.
        run_folder: Where W&B's files go.
        record: The record with the run's id.
        mode: "online" or "offline".

    Raises:
        SettingsError: W&B refuses the key, the entity or the project.
        Unreachable: W&B does not answer in time.
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
                # A diff of the checkout may contain anything; the commit is in the config.
                disable_git=True,
                disable_code=True,
                finish_timeout_raises=True,
                x_stats_pid=os.getppid(),
            ),
        )
    except (wandb.errors.Error, ValueError) as error:
        is_comm_error = isinstance(error, wandb.errors.CommError)
        if is_comm_error and _NO_ANSWER.search(str(error)):
            # W&B's own process would still hold the id and refuse it to the offline run that
            # replaces this one.
            wandb.teardown()
            raise Unreachable(str(error).splitlines()[0]) from error
        raise _refusal(settings, error) from error
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return WandbRun(run)


def _refusal(settings: Settings, error: Exception) -> SettingsError:
    entity = f" WANDB_ENTITY={settings.wandb_entity!r}" if settings.wandb_entity else ""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SettingsError(
        f"WANDB_PROJECT={settings.wandb_project!r}{entity}: W&B refuses this run ({reason}). "
        "Check the key (.venv/bin/wandb login), the project and the entity; or record on this "
        "disk with WANDB_MODE=offline, or turn W&B off with REPORT_TO=none."
    )


def _given_up(log: Path) -> str:
    """Return what W&B's own process failed to send, according to its log; "" if nothing.

    `finish` itself does not report this.
    """
    with suppress(OSError, ValueError):
        for line in read_bytes(log, MAX_LOG_BYTES).splitlines():
            if _ERROR_LEVEL not in line:
                continue
            message = str(json.loads(line).get("msg", ""))
            # A failed request may have been retried; an abandoned one has a line of its own.
            if message and not message.startswith(_REQUEST_FAILED):
                return message
    return ""
