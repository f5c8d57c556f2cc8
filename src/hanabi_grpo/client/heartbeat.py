"""A sign of life, sent beside whatever the trainer is doing."""

import logging
import threading
from collections.abc import Mapping
from typing import Self

import httpx

from hanabi_grpo.client.calls import bounded_client, detail_of
from hanabi_grpo.client.rollout_client import RolloutClient

logger = logging.getLogger(__name__)
_EVERY = 5.0


class Heartbeat:
    """Tells the server every few seconds that its trainer is alive, from a thread of its own.

    A step may take minutes in which the trainer sends nothing; without signs of life another
    trainer could take over."""

    def __init__(self, url: str, headers: Mapping[str, str], *, every: float = _EVERY) -> None:
        """Prepare; `every` is the number of seconds between two signs, and the time limit of
        one.
        """
        self._url, self._headers, self._every = url, dict(headers), every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.lost = ""
        """Why the server is no longer this trainer's; empty while it is. The trainer looks here
        between steps.
        """
        self.beats = 0
        """Signs that were answered."""
        self.missed = ""
        """What became of the last sign that was not: the server is away, or does not know this run
        yet.
        """

    @classmethod
    def from_client(cls, client: RolloutClient) -> Self:
        """Prepare for the client's session: several signs within the server's patience."""
        assert client.session_timeout is not None, "a heartbeat needs a session"
        return cls(client.url, client.headers, every=min(_EVERY, client.session_timeout / 4))

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, within a second: a sign that is on its way is left to itself."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=0.9)

    def _run(self) -> None:
        with bounded_client(headers=self._headers, timeout=self._every) as http:
            while not self.lost and not self._stop.wait(self._every):
                self._beat(http)

    def _beat(self, http: httpx.Client) -> None:
        status = 0
        try:
            answer = http.post(f"{self._url}/session/heartbeat")
            status, text = answer.status_code, detail_of(answer)
        except Exception as error:
            # Whatever happens to a sign of life, the training goes on: the next real request tells.
            text = f"{type(error).__name__}: {error}"
        if self._stop.is_set():
            # A sign that crossed the release of the session says nothing.
            return
        if status == 200:
            self.beats += 1
        elif status == 409:
            self.lost = f"{self._url}: {text}"
            logger.warning("heartbeat refused: %s", self.lost)
        else:
            self.missed = f"{status}: {text}"
            logger.debug("no answer to a heartbeat: %s", self.missed)
