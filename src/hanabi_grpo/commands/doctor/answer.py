"""What an address answers, and which process of this machine listens on a port."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import psutil

from hanabi_grpo.client.calls import bounded_client
from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.settings import Settings

_LIMIT = 3.0
"""Seconds of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from an address."""

    status: int = 0
    """HTTP status; 0 when there was no answer."""
    problem: str = ""
    """Why there was none."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The answer's JSON object; empty for any other content."""

    @property
    def is_ours(self) -> bool:
        """True when a rollout server of this project answers, if only that it starts or refuses the key."""
        wrong_key = self.status in (401, 403) and "HANABI_API_KEY" in str(self.body.get("detail"))
        return "instance_id" in self.body or wrong_key or self.is_starting

    @property
    def is_starting(self) -> bool:
        """True when a rollout server answers that its engine is not up yet."""
        return self.body.get("status") == STARTING


def ask(url: str, settings: Settings) -> Answer:
    """Send one GET with the key and a time limit."""
    headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
    try:
        with bounded_client(headers=headers, timeout=_LIMIT) as client:
            answer = client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Answer(problem=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    try:
        body = answer.json()
    except ValueError:
        body = None
    return Answer(status=answer.status_code, body=body if isinstance(body, dict) else {})


def ask_health(host: str, port: int, settings: Settings) -> Answer:
    """Ask an address how it is."""
    return ask(f"http://{f'[{host}]' if ':' in host else host}:{port}/health/", settings)


def is_local(host: str) -> bool:
    """Tell whether a host name is this machine by its loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def port_owner(port: int) -> tuple[int, str, bool] | None:
    """Return who listens on a TCP port: (pid, its command line, whether it is `hanabi-grpo serve`).

    None when there is nobody, or it is another user's. A rollout server's port is held by two processes with one
    command line: the one that serves, and its parent, which is returned.
    """
    found = psutil.net_connections("tcp")
    pids = (one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid)
    try:
        owner = next((psutil.Process(pid) for pid in pids), None)
        if owner is None:
            return None
        words, parent = owner.cmdline(), owner.parent()
        pid = parent.pid if parent and parent.cmdline() == words else owner.pid
    except psutil.Error:
        return None
    programs = ("hanabi-grpo", "hanabi_grpo.cli", "cli.py")
    serves = any(Path(one).name in programs and next_one == "serve" for one, next_one in itertools.pairwise(words))
    return pid, " ".join(words), serves
