"""Heartbeats, which the trainer sends in the background."""

import logging
import threading
from collections.abc import Mapping
from typing import Self

import httpx

from hanabi_grpo.client.calls import bounded_client, detail_of
from hanabi_grpo.client.rollout_client import RolloutClient

logger = logging.getLogger(__name__)
_INTERVAL_SECONDS = 5.0
_BEATS_PER_TIMEOUT = 4
"""Heartbeats per timeout of the server, so that losing single ones does no harm."""
_STOP_SECONDS = 0.9


class Heartbeat:
    """A thread that tells the server every few seconds that its trainer is alive.

    A step may take minutes in which the trainer sends nothing else; without heartbeats another
    trainer could take over.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], *, every: float = _INTERVAL_SECONDS
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: Address of the server.
            headers: Headers of every request of the trainer.
            every: Seconds between two heartbeats, and the timeout of each.
        """
        self._url = url
        self._headers = dict(headers)
        self._interval = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.lost = ""
        """Why the server no longer belongs to this trainer; empty while it does.

        The trainer checks it between steps.
        """
        self.beats = 0
        """Number of heartbeats that were answered."""
        self.missed = ""
        """Why the last heartbeat was not answered.

        The server is not reachable, or does not know this run yet.
        """

    @classmethod
    def from_client(cls, client: RolloutClient) -> Self:
        """Prepare for the client's session: several heartbeats per timeout of the server."""
        assert client.session_timeout is not None, "a heartbeat needs a session"
        interval = min(_INTERVAL_SECONDS, client.session_timeout / _BEATS_PER_TIMEOUT)
        return cls(client.url, client.headers, every=interval)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End within a second, without waiting for a heartbeat in flight."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        with bounded_client(headers=self._headers, timeout=self._interval) as http:
            while not self.lost and not self._stop.wait(self._interval):
                self._beat(http)

    def _beat(self, http: httpx.Client) -> None:
        status = 0
        try:
            answer = http.post(f"{self._url}/session/heartbeat")
            status = answer.status_code
            detail = detail_of(answer)
        except Exception as error:
            # A failed heartbeat does not stop anything: the next real request would fail.
            detail = f"{type(error).__name__}: {error}"
        if self._stop.is_set():
            # Ignore the answer to a heartbeat that crossed the release of the session.
            return
        if status == httpx.codes.OK:
            self.beats += 1
        elif status == httpx.codes.CONFLICT:
            self.lost = f"{self._url}: {detail}"
            logger.warning("heartbeat refused: %s", self.lost)
        else:
            self.missed = f"{status}: {detail}"
            logger.debug("no answer to a heartbeat: %s", self.missed)
