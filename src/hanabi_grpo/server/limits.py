"""Every bound at the server's door: sizes, times and how many at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may use. Tests give shorter times; the server uses the defaults and its own adapter size.

    Example:
        Limits(adapter_bytes=max_adapter_bytes(shapes, 16))
    """

    rollout_bytes: int = 8 << 20
    """Body of one rollout request; a task takes about 350 bytes, and `messages.MAX_TASKS` of them are allowed."""
    adapter_bytes: int = 2 << 30
    """Body of one adapter upload; `max_adapter_bytes` knows what the base model can have."""
    reply_bytes: int = 8 << 20
    """Body of one request for a single reply; `messages.ReplyRequest` bounds its parts."""
    other_bytes: int = 1 << 20
    """Body of every other request."""
    header_bytes: int = 64 << 10
    """Request line and headers together."""
    head_seconds: float = 30.0
    """To send a whole request head, counted from the connection's start or its last answer."""
    chunk_seconds: float = 20.0
    """Longest silence inside a body."""
    body_bytes_per_second: int = 16 << 10
    """Slowest body, as a mean over all of it; looked at after `chunk_seconds`."""
    connections: int = 256
    """Open at once. Twice as many are let in to be told so."""
    rollouts_at_once: int = 16
    """Rollout requests of guests read, waiting or played at once."""
    own_at_once: int = 4
    """Requests of each kind that the session's trainer may have open, however many guests have."""
    uploads_at_once: int = 16
    """Adapter uploads read at once."""
    lends_at_once: int = 4
    """Uploads of lent adapters read at once; counted apart, so that they never keep a trainer from pushing."""
    replies_at_once: int = 64
    """Requests for a single reply read, waiting or sampled at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRule:
    """What may come as the body of one kind of request."""

    what: str
    max_bytes: int
    at_once: int | None
    """How many such requests may be open; None: as many as there are connections."""
    content_types: tuple[str, ...] | None
    """One of them must be named by a POST and may be by a PUT; None: any, since nobody reads the body."""


def body_rule(method: str, path: str, limits: Limits) -> BodyRule:
    """Return the rule for a request."""
    if method == "POST" and path.rstrip("/") == "/rollout":
        return BodyRule(
            what="rollout request",
            max_bytes=limits.rollout_bytes,
            at_once=limits.rollouts_at_once,
            content_types=("application/json",),
        )
    if method == "PUT" and path.startswith("/adapters/"):
        return BodyRule(
            what="adapter upload",
            max_bytes=limits.adapter_bytes,
            at_once=limits.uploads_at_once,
            content_types=("application/octet-stream",),
        )
    if method == "PUT" and path.rstrip("/") == "/frozen":
        return BodyRule(
            what="lent adapter",
            max_bytes=limits.adapter_bytes,
            at_once=limits.lends_at_once,
            content_types=("application/octet-stream",),
        )
    if method == "POST" and path.rstrip("/") == "/reply":
        return BodyRule(
            what="reply request",
            max_bytes=limits.reply_bytes,
            at_once=limits.replies_at_once,
            content_types=("application/json",),
        )
    types = ("application/json",) if path.startswith("/session") else None
    return BodyRule(what="request body", max_bytes=limits.other_bytes, at_once=None, content_types=types)
