"""Values with a special format: addresses of servers, URLs of partners, and names at W&B.

They are checked here, so an invalid one is found before any request is sent. The rules for W&B are
those of its `wandb/sdk/artifacts/_validators.py`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from hanabi_grpo.settings.variables import split_list

SERVERS = (
    "Host of the rollout server. A comma-separated list of host or host:port: several servers, "
    "which share the training games (other commands use the first)."
)
"""Description of VLLM_SERVER_HOST."""
SERVER_PORT = "Port of the rollout server; with several, of those listed without a port."
"""Description of VLLM_SERVER_PORT."""
SERVERS_ALLOWED = (
    "a host name or address without http://, or a comma-separated list of them, each listed once "
    "and optionally followed by :port; an IPv6 address with a port is written [::1]:8000"
)
PROJECT_ALLOWED = "1 to 128 characters, none of / \\ # ? % :, and not only dots"
ARTIFACT_ALLOWED = "1 to 128 letters, digits, dots, dashes and underscores"
PARTNER_URLS_ALLOWED = (
    "a comma-separated list of NAME=URL#MODEL, e.g. "
    "big=http://localhost:8001/v1#Qwen/Qwen3-8B: each NAME once, of lowercase letters, digits, - "
    "and _; an http or https URL without user, password or ?; the MODEL as that server calls it"
)
LOG_MODEL_ALLOWED = "checkpoint, end (or true, as in W&B), false"
ALIASES_ALLOWED = (
    "a comma-separated list of words without / and :, none of them a version such as v3, "
    "which W&B assigns itself"
)
KEY_LENGTH = 16
"""Characters that HANABI_API_KEY needs if other machines can reach a server."""
NO_MONITOR = "none"
MONITORS = ("tensorboard", "wandb")
"""What REPORT_TO may name."""
MONITORS_ALLOWED = f"{NO_MONITOR}, or a comma-separated list of {' and '.join(MONITORS)}"
_LARGEST_PORT = 65535
_ADDRESS = re.compile(r"(\[[^]]+\]|[^\s:/?#@\\\[\]]+)(?::([0-9]{1,6}))?")
"""A host, or an IPv6 address in brackets, and optionally a port."""
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?", re.ASCII)
"""What an IPv6 address consists of, with its zone; `ip_address` takes any text for a zone."""
_PARTNER_URL = re.compile(
    r"([a-z][a-z0-9_-]{0,31})=(https?://[^\s,?#@]+)#([^\s,]{1,200})", re.ASCII
)
"""NAME=URL#MODEL."""
_EVERY = re.compile(r"every:([1-9][0-9]{0,8})", re.ASCII)
_PRINTABLE = re.compile(r"[!-~]*")
"""Printable ASCII without spaces."""
_PROJECT = re.compile(r"(?!\.+\Z)[^/\\#?%:\r\n]{1,128}")
_ARTIFACT = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
_BAD_ALIAS = re.compile(r"[/:]|^v[0-9]+$")


class Address(NamedTuple):
    """Where one rollout server is."""

    host: str
    port: int | None
    """None if it is not given."""


@dataclass(frozen=True, slots=True)
class PartnerUrl:
    """One model of HANABI_PARTNER_URLS."""

    name: str
    """What it is called in lineups: url:NAME."""
    base: str
    """E.g. "http://localhost:8001/v1"; "/chat/completions" is appended."""
    model: str
    """The model's name on the server behind the URL."""


def where(is_right: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that refuses invalid values.

    The setting's `allowed` describes the valid ones.

    Args:
        is_right: Returns a false value, or raises a ValueError, for an invalid value.
    """

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError("not allowed")
        return value

    return AfterValidator(check)


def split_address(text: str) -> Address:
    """Return the host and the port of one server of VLLM_SERVER_HOST.

    A server is a host, or a host and its port: gpu7, 10.0.0.7:8001, ::1, [::1]:8001. One with two
    colons or more and no brackets is an IPv6 address.

    Raises:
        ValueError: The text is malformed, or the port is invalid.
    """
    text = text.strip()
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    match = _ADDRESS.fullmatch(text)
    if match is None or not _is_address(match[1], int(match[2] or 1)):
        raise ValueError(
            f"{text!r}: give host or host:port, without http://, with a port from 1 to "
            f"{_LARGEST_PORT}, as in [::1]:8001"
        )
    return Address(host=match[1].strip("[]"), port=int(match[2]) if match[2] else None)


def _is_address(host: str, port: int) -> bool:
    is_host = not host.startswith("[") or _is_ipv6(host[1:-1])
    return is_host and 1 <= port <= _LARGEST_PORT


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return _IPV6.fullmatch(text) is not None


def split_partner_url(text: str) -> PartnerUrl:
    """Return the parts of one entry of HANABI_PARTNER_URLS.

    Raises:
        ValueError: The entry is malformed.
    """
    match = _PARTNER_URL.fullmatch(text)
    if match is None or not urlsplit(match[2]).hostname or urlsplit(match[2]).port == 0:
        raise ValueError(f"{text!r}: give NAME=URL#MODEL")
    return PartnerUrl(match[1], match[2].rstrip("/"), match[3])


def reference_steps(text: str) -> int | None:
    """Return K of the HANABI_REFERENCE every:K; None for base and start.

    Raises:
        ValueError: It is none of these.
    """
    if text in ("base", "start"):
        return None
    match = _EVERY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r}: give base, start or every:K")
    return int(match[1])


def is_loopback(host: str) -> bool:
    """Tell whether a host name is this machine by its loopback address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def why_key_is_needed(host: str, key: str) -> str | None:
    """Tell why a server on an address may not start with a key, or without one.

    Args:
        host: Address that it listens on.
        key: HANABI_API_KEY; "": there is none.

    Returns:
        The reason; None if it may start.
    """
    if is_loopback(host) or len(key) >= KEY_LENGTH:
        return None
    needed = ""
    if key:
        needed = f" of at least {KEY_LENGTH} characters; this one has {len(key)}"
    return f"an address that other machines can reach needs HANABI_API_KEY{needed}"


def is_reference(text: str) -> bool:
    """Tell whether a text is a HANABI_REFERENCE."""
    reference_steps(text)
    return True


def are_monitors(names: tuple[str, ...]) -> bool:
    """Tell whether these are names of monitors, or `none` alone."""
    if names == (NO_MONITOR,):
        return True
    return bool(names) and all(name in MONITORS for name in names)


def _are_addresses(text: str) -> bool:
    return all(split_address(part) for part in text.split(","))


def _are_partner_urls(entries: tuple[str, ...]) -> bool:
    names = {split_partner_url(entry).name for entry in entries}
    return len(names) == len(entries)


def _is_header_safe(key: SecretStr) -> bool:
    return _PRINTABLE.fullmatch(key.get_secret_value()) is not None


def _is_project_name(name: str) -> bool:
    return _PROJECT.fullmatch(name) is not None


def _is_artifact_name(name: str) -> bool:
    return _ARTIFACT.fullmatch(name) is not None


def _without_repetitions(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _are_aliases(names: tuple[str, ...]) -> bool:
    return not any(_BAD_ALIAS.search(name) for name in names)


Servers = Annotated[str, where(_are_addresses)]


def _log_model(value: Any) -> Any:
    """Return WANDB_LOG_MODEL with "end" for "true", as in W&B."""
    return "end" if str(value).strip().lower() == "true" else value


LogModel = Annotated[Literal["checkpoint", "end", "false"], BeforeValidator(_log_model)]
PartnerUrls = Annotated[tuple[str, ...], BeforeValidator(split_list), where(_are_partner_urls)]
HeaderSafe = Annotated[SecretStr, where(_is_header_safe)]
# The name becomes a folder below outputs/downloads.
ProjectName = Annotated[str, where(_is_project_name)]
ArtifactName = Annotated[str, where(_is_artifact_name)]
Aliases = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    AfterValidator(_without_repetitions),
    where(_are_aliases),
]
Monitors = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    AfterValidator(lambda names: tuple(dict.fromkeys(names))),
    where(are_monitors),
]
