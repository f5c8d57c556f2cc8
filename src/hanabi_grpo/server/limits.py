"""Every bound at the server's door: sizes, times and how many at once."""

from dataclasses import dataclass

_JSON, _BYTES = "application/json", "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may use. Tests give shorter times; the server uses the defaults and its own adapter size."""

    rollout_bytes: int = 8 << 20
    """Body of one rollout request; a task takes about 350 bytes, and `messages.MAX_TASKS` of them are allowed."""
    adapter_bytes: int = 2 << 30
    """Body of one adapter upload; `max_adapter_bytes` knows what the base model can have."""
    reply_bytes: int = 8 << 20
    """Body of one request for a single reply; `messages.ReplyRequest` bounds its parts."""
    other_bytes: int = 1 << 20
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
    lends_at_once: int = 4
    """Uploads of lent adapters; counted apart, so that they never keep a trainer from pushing."""
    replies_at_once: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRule:
    """What may come as the body of one kind of request."""

    what: str
    max_bytes: int
    at_once: int | None
    """How many such requests may be open; None: as many as there are connections."""
    content_type: str | None
    """It must be named by a POST and may be by a PUT; None: any, since nobody reads the body."""


def body_rule(method: str, path: str, limits: Limits) -> BodyRule:
    """Return the rule for a request."""
    one = {
        "POST /rollout": ("rollout request", limits.rollout_bytes, limits.rollouts_at_once, _JSON),
        "POST /reply": ("reply request", limits.reply_bytes, limits.replies_at_once, _JSON),
        "PUT /adapters": ("adapter upload", limits.adapter_bytes, limits.uploads_at_once, _BYTES),
        "PUT /frozen": ("lent adapter", limits.adapter_bytes, limits.lends_at_once, _BYTES),
    }
    first = f"{method} /{path.removeprefix('/').partition('/')[0]}"
    other = ("request body", limits.other_bytes, None, _JSON if path.startswith("/session") else None)
    what, max_bytes, at_once, content_type = one.get(first, other)
    return BodyRule(what=what, max_bytes=max_bytes, at_once=at_once, content_type=content_type)
