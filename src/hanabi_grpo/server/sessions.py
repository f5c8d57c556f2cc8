"""Which trainer the server works for: one at a time, until it leaves or has been silent for too
long.
"""

import hmac
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hanabi_grpo.errors import SessionError, VersionError
from hanabi_grpo.rollout.handshake import SessionRequest, read_session_headers

logger = logging.getLogger(__name__)

NO_SESSION = "no trainer has opened a session on this server; open one first (POST /session/)."


@dataclass(slots=True, kw_only=True)
class Session:
    """The trainer that the server works for now."""

    trainer: SessionRequest
    heard: float
    """When its last sign of life came, in seconds of a monotonic clock."""
    released: bool = False

    def is_of_run(self, wanted: SessionRequest) -> bool:
        """Tell whether a trainer works in this session's run folder: the name is public, the secret
        is not.
        """
        return self.trainer.run_id == wanted.run_id and _same(wanted.secret, self.trainer.secret)

    def serves_the_same(self, wanted: SessionRequest) -> bool:
        """Tell whether what this session pushed can be served on for a trainer."""
        same_adapters = (self.trainer.adapters, self.trainer.lora_rank) == (
            wanted.adapters,
            wanted.lora_rank,
        )
        return self.is_of_run(wanted) and same_adapters

    def __str__(self) -> str:
        return f"{self.trainer.run_id} (trainer {self.trainer.trainer_id[:8]})"


class Ownership:
    """Decides who may open, use and end a session; after `timeout` seconds of silence another
    trainer may take over.
    """

    def __init__(self, timeout: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout, self._clock = timeout, clock
        self.session: Session | None = None

    @property
    def is_alive(self) -> bool:
        """True while the session belongs to its trainer and nobody else may open one."""
        return (
            self.session is not None and not self.session.released and self.silence <= self._timeout
        )

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life; 0 without a session."""
        return self._clock() - self.session.heard if self.session else 0.0

    def refuse_stranger(self, wanted: SessionRequest) -> None:
        """Refuse a trainer while one of another run is alive: the SessionError names that run and
        the ways out.

        A second trainer of the same run folder is the first one's successor: the lock on the folder
        says that the first is gone, so a resumed run need not wait until the server has noticed.
        The folder's secret proves it."""
        session = self.session
        if session is None or not self.is_alive or session.is_of_run(wanted):
            return
        if _same(wanted.trainer_id, session.trainer.trainer_id):
            return
        is_named = wanted.run_id == session.trainer.run_id
        named = "; this trainer has its name but not the secret of its folder" if is_named else ""
        wait = max(0.0, self._timeout - self.silence)
        raise SessionError(
            f"this server works for run {session.trainer.run_id}, heard {self.silence:.0f} s "
            f"ago{named}. One trainer "
            f"at a time: stop it, or, if it is gone, wait {wait:.0f} s; or start a second server "
            "on another PORT."
        )

    def open(self, wanted: SessionRequest) -> Session:
        """Give the server to a trainer, or note that its trainer is there."""
        old = self.session
        if (
            old is not None
            and old.serves_the_same(wanted)
            and old.trainer.trainer_id == wanted.trainer_id
        ):
            old.heard, old.released = self._clock(), False
            return old
        if old is not None:
            logger.info(
                "session: %s %s",
                old,
                "left" if old.released else f"was last heard {self.silence:.0f} s ago",
            )
        self.session = Session(trainer=wanted, heard=self._clock())
        logger.info("session: now working for %s", self.session)
        return self.session

    def current(self) -> Session:
        """Return the session that was opened last, else raise a SessionError; its trainer may have
        left since.
        """
        if self.session is None:
            raise SessionError(NO_SESSION)
        return self.session

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise a SessionError unless a request is from the session's trainer; then it counts as a
        sign of life.
        """
        session = self._of(headers)
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
        """End the session of a request's trainer; a second time is harmless. Raises as `check`."""
        session = self._of(headers)
        if not session.released:
            logger.info("session: %s has released this server", session)
        session.released = True

    def _of(self, headers: Mapping[str, str]) -> Session:
        session, (run_id, trainer_id) = self.current(), read_session_headers(headers)
        known = session.trainer
        if run_id is None or trainer_id is None:
            raise SessionError(
                f"headers x-run-id={run_id!r} and x-trainer-id={trainer_id!r} must say which "
                "trainer asks; "
                "both are those of POST /session/."
            )
        if run_id != known.run_id:
            raise SessionError(
                f"run {run_id} is not the one that this server works for ({known.run_id}): "
                "another trainer or an "
                "evaluation opened a session. One at a time: stop it, restart this trainer, or "
                "use a second server."
            )
        if not _same(trainer_id, known.trainer_id):
            raise SessionError(
                f"run {run_id}: trainer {trainer_id[:8]} is not the one that this server works for "
                f"({known.trainer_id[:8]}): a second trainer process of the same run took over. "
                "Stop one of them."
            )
        return session


def versions_to_drop(
    session: Session | None, wanted: SessionRequest, served: Mapping[str, int]
) -> dict[str, int]:
    """Return what a trainer that opens a session replaces, of the served version of each adapter.

    A VersionError says that it does not name exactly the newer versions of its run that the server
    holds."""
    if session is None:
        return {}
    newer = {name: version for name, version in served.items() if version > wanted.version}
    if session.is_of_run(wanted) and newer and wanted.replaces != newer:
        held = ", ".join(f"{name}@{version}" for name, version in newer.items())
        named = "none" if wanted.replaces is None else f"{wanted.replaces}"
        raise VersionError(
            f"this server holds {held} of this run; the trainer resumes at {wanted.version}: steps "
            f"{wanted.version + 1}-{max(newer.values())} were not saved and would be made again. "
            "It must say so "
            f"(replaces={newer}, got {named}). Or resume from a newer checkpoint, choose another "
            "OUTPUT_DIR, or "
            "restart the server."
        )
    return newer if session.serves_the_same(wanted) else dict(served)


def _same(given: str, known: str) -> bool:
    # Who names a trainer's id or a run's secret is let in, so the time of the comparison must not
    # tell their letters.
    return hmac.compare_digest(given.encode(), known.encode())
