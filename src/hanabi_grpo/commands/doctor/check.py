"""One finding of the doctor."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "skip"]
Role = Literal["server", "trainer", "both"]
STATUSES: tuple[Status, ...] = ("ok", "warn", "fail", "skip")
ROLES: tuple[Role, ...] = ("server", "trainer", "both")
PAGE = "docs/troubleshooting.md"
"""What a failure or warning means and what to do; one heading for each name of a check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one check found.

    Example:
        Check(name="proxy", status="warn", finding="HTTP_PROXY is set and NO_PROXY lacks 127.0.0.1: …",
              remedy='export NO_PROXY="$NO_PROXY,127.0.0.1"', seconds=0.0)
    """

    name: str
    status: Status
    finding: str
    remedy: str = ""
    """Lines to type; never empty for warn and fail."""
    seconds: float = 0.0
    """How long it took."""

    @property
    def see(self) -> str:
        """The place in the docs, e.g. "docs/troubleshooting.md#run-folder"; empty where nothing is wrong."""
        return f"{PAGE}#{self.name.replace(' ', '-')}" if self.status in ("warn", "fail") else ""


def ok(name: str, finding: str) -> Check:
    """Return a finding that needs nothing."""
    return Check(name=name, status="ok", finding=finding)


def skip(name: str, finding: str, remedy: str = "") -> Check:
    """Return a check that could not be made, or has nothing to look at; `finding` says why."""
    return Check(name=name, status="skip", finding=finding, remedy=remedy)


def warn(name: str, finding: str, remedy: str) -> Check:
    """Return a finding that does not stop a run but should be known."""
    return Check(name=name, status="warn", finding=finding, remedy=remedy)


def fail(name: str, finding: str, remedy: str) -> Check:
    """Return a finding that stops a run."""
    return Check(name=name, status="fail", finding=finding, remedy=remedy)
