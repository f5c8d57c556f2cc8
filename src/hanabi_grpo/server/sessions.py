"""The trainer that the server works for: one at a time, until it leaves or is silent too long."""

import hmac
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hanabi_grpo.errors import SessionError, VersionError
from hanabi_grpo.rollout.handshake import SessionRequest, read_session_headers
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.texts import visible_line

logger = logging.getLogger(__name__)

NO_SESSION = "no trainer has opened a session on this server; open one first (POST /session/)."

_SHOWN_ID = 8
"""Characters of a trainer's id in messages: the whole id would grant access."""


@dataclass(slots=True, kw_only=True)
class Session:
    """The trainer that the server currently works for."""

    trainer: SessionRequest
    """The trainer's description of itself."""
    heard: float
    """Time of its last sign of life, in seconds of a monotonic clock."""
    released: bool = False
    """Whether it has left."""

    def is_of_run(self, wanted: SessionRequest) -> bool:
        """Tell whether a trainer works in this session's run folder.

        The run's name is public, the folder's secret is not.
        """
        if self.trainer.run_id != wanted.run_id:
            return False
        return _is_same_secret(wanted.secret, self.trainer.secret)

    def serves_the_same(self, wanted: SessionRequest) -> bool:
        """Tell whether the versions that this session pushed can still be served for a trainer."""
        return (
            self.is_of_run(wanted)
            and self.trainer.adapters == wanted.adapters
            and self.trainer.lora_rank == wanted.lora_rank
            and self.trainer.lora_ranks == wanted.lora_ranks
        )

    def __str__(self) -> str:
        # Used in the log, which every client may read.
        run = public_run(self.trainer.run_id)
        return f"run {run} (trainer {self.trainer.trainer_id[:_SHOWN_ID]})"


class Ownership:
    """Decides which trainer may open, use and end a session."""

    def __init__(self, timeout: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a session.

        Args:
            timeout: Seconds of silence after which another trainer may take over.
            clock: Returns seconds; for tests.
        """
        self._timeout = timeout
        self._clock = clock
        self.session: Session | None = None

    @property
    def is_alive(self) -> bool:
        """True while the session belongs to its trainer and nobody else may open one."""
        if self.session is None or self.session.released:
            return False
        return self.silence <= self._timeout

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life; 0 without a session."""
        if self.session is None:
            return 0.0
        return self._clock() - self.session.heard

    def refuse_stranger(self, wanted: SessionRequest) -> None:
        """Reject a trainer while the session of another run is alive.

        A second trainer of the same run folder is the successor of the first: the lock on the
        folder guarantees that the first is gone, so a resumed run need not wait until the server
        notices. The folder's secret proves that it is the same run.

        Raises:
            SessionError: Another run's session is alive; the message names that run and what to do.
        """
        session = self.session
        if session is None or not self.is_alive or session.is_of_run(wanted):
            return
        if _is_same_secret(wanted.trainer_id, session.trainer.trainer_id):
            return
        same_name = ""
        if wanted.run_id == session.trainer.run_id:
            same_name = "; this trainer has its name but not the secret of its folder"
        wait = max(0.0, self._timeout - self.silence)
        raise SessionError(
            f"this server serves run {session.trainer.run_id}, last heard from "
            f"{self.silence:.0f} s ago{same_name}. One trainer at a time: stop it, or, if it is "
            f"gone, wait {wait:.0f} s; or start a second server on another PORT."
        )

    def open(self, wanted: SessionRequest) -> Session:
        """Give the server to a trainer, or refresh its own session.

        Returns:
            The old session if it is this trainer's, else a new one.
        """
        old = self.session
        if old is not None:
            is_same_trainer = old.trainer.trainer_id == wanted.trainer_id
            if old.serves_the_same(wanted) and is_same_trainer:
                old.heard = self._clock()
                old.released = False
                return old
            end = "left" if old.released else f"was last heard from {self.silence:.0f} s ago"
            logger.info("session: %s %s", old, end)
        self.session = Session(trainer=wanted, heard=self._clock())
        logger.info("session: now serving %s", self.session)
        return self.session

    def current(self) -> Session:
        """Return the latest session; its trainer may have left.

        Raises:
            SessionError: There has been no session yet.
        """
        if self.session is None:
            raise SessionError(NO_SESSION)
        return self.session

    def check(self, headers: Mapping[str, str]) -> None:
        """Check that a request is from the session's trainer; it counts as a sign of life.

        Raises:
            SessionError: It is from another trainer, or its trainer has released the server.
        """
        session = self._session_of(headers)
        if session.released:
            raise SessionError(
                f"run {session.trainer.run_id} has released this server; open a session again "
                "(POST /session/)."
            )
        session.heard = self._clock()

    def is_owner(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request is from the session's trainer, see `check`."""
        try:
            self.check(headers)
        except SessionError:
            return False
        return True

    def release(self, headers: Mapping[str, str]) -> None:
        """End the session of a request's trainer; may be repeated. Raises as `check`."""
        session = self._session_of(headers)
        if not session.released:
            logger.info("session: %s has released this server", session)
        session.released = True

    def _session_of(self, headers: Mapping[str, str]) -> Session:
        session = self.current()
        run_id, trainer_id = read_session_headers(headers)
        if run_id is None or trainer_id is None:
            raise SessionError(
                f"headers x-run-id={run_id!r} and x-trainer-id={trainer_id!r} must identify the "
                "trainer; send the values of POST /session/."
            )
        trainer = session.trainer
        if run_id != trainer.run_id:
            raise SessionError(
                f"run {visible_line(run_id)} is not the one that this server works for "
                f"({trainer.run_id}): another trainer or an evaluation opened a session. One at "
                "a time: stop it, restart this trainer, or use a second server."
            )
        if not _is_same_secret(trainer_id, trainer.trainer_id):
            raise SessionError(
                f"run {run_id}: trainer {visible_line(trainer_id[:_SHOWN_ID])} is not the one that "
                f"this server works for ({trainer.trainer_id[:_SHOWN_ID]}): a second trainer "
                "process of the same run took over. Stop one of them."
            )
        return session


def versions_to_drop(
    session: Session | None, wanted: SessionRequest, served: Mapping[str, int]
) -> dict[str, int]:
    """Return the served versions that are replaced when a trainer opens a session.

    Args:
        session: The previous session.
        wanted: The trainer's request.
        served: Served version of each adapter.

    Returns:
        The versions that are no longer served, by adapter. For the same run with the same adapters,
        these are only the versions newer than the checkpoint that it resumes from; otherwise, and
        if it starts over at 0, all.

    Raises:
        VersionError: The server holds newer versions of the trainer's run, and the trainer does not
            name exactly these as the ones to replace.
    """
    if session is None:
        return {}
    newer = {}
    for name, version in served.items():
        if version > wanted.version:
            newer[name] = version
    if session.is_of_run(wanted) and newer and wanted.replaces != newer:
        names = ", ".join(f"{name}@{version}" for name, version in newer.items())
        given = "none" if wanted.replaces is None else f"{wanted.replaces}"
        raise VersionError(
            f"this server holds {names} of this run; the trainer resumes at {wanted.version}: "
            f"steps {wanted.version + 1}-{max(newer.values())} were not saved and would be "
            f"repeated. To confirm, send replaces={newer} (got {given}). Or resume from a newer "
            "checkpoint, choose another OUTPUT_DIR, or restart the server."
        )
    # A new process without a checkpoint starts over, perhaps with another seed.
    is_start = wanted.version == 0 and wanted.trainer_id != session.trainer.trainer_id
    if session.serves_the_same(wanted) and not is_start:
        return newer
    return dict(served)


def _is_same_secret(given: str, known: str) -> bool:
    # A trainer's id or a run's secret grants access, so the time of the comparison must not reveal
    # it.
    return hmac.compare_digest(given.encode(), known.encode())
