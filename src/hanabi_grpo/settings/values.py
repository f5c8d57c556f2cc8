"""Values of a form of their own: servers, and names that W&B takes, so that a bad one is found
before it is asked.

W&B's rules are those of its `wandb/sdk/artifacts/_validators.py`.
"""

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from hanabi_grpo.settings.variables import split_list

SERVERS = (
    "Where the rollout server is; a comma list of host or host:port: several, which share the "
    "games of training "
    "(other commands use the first)."
)
SERVER_PORT = "Its port; with several servers, of those that name none."
SERVERS_ALLOWED = (
    "a host name or address, or a comma list of them, each perhaps with :port behind it and named "
    "once; an IPv6 "
    "address with a port is written [::1]:8000"
)
PROJECT_ALLOWED = "1 to 128 characters, none of / \\ # ? % :, and not dots alone"
ARTIFACT_ALLOWED = "1 to 128 letters, digits, dots, dashes and underscores"
PARTNER_URLS_ALLOWED = (
    "a comma list of NAME=URL#MODEL, e.g. big=http://localhost:8001/v1#Qwen/Qwen3-8B: each NAME "
    "once, of small "
    "letters, digits, - and _; an http or https URL without user, password or ?; the MODEL as "
    "that server calls it"
)
ALIASES_ALLOWED = (
    "a comma list of words without / and :, none of them a version such as v3, "
    "which W&B gives itself"
)
NO_MONITOR = "none"
MONITORS = ("tensorboard", "wandb")
"""What REPORT_TO may name."""
MONITORS_ALLOWED = f"{NO_MONITOR}, or a comma list of {' and '.join(MONITORS)}"
_LARGEST_PORT = 65535
_ADDRESS = re.compile(r"(\[[^]]+\]|[^:\[\]]+)(?::([0-9]{1,6}))?", re.ASCII)

_PARTNER_URL = re.compile(
    r"([a-z][a-z0-9_-]{0,31})=(https?://[^\s,?#@]+)#([^\s,]{1,200})", re.ASCII
)


class PartnerUrl(NamedTuple):
    """One model of HANABI_PARTNER_URLS."""

    name: str
    base: str
    """E.g. "http://localhost:8001/v1"; "/chat/completions" comes behind it."""
    model: str


def where(is_right: Callable[[Any], object]) -> AfterValidator:
    """Return what refuses other values; the setting's `allowed` says which are right."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError("not allowed")
        return value

    return AfterValidator(check)


def split_address(word: str) -> tuple[str, int | None]:
    """Return the host and the port of one server of VLLM_SERVER_HOST; None where it names no port.

    A server is a host, or a host and its port: gpu7, 10.0.0.7:8001, ::1, [::1]:8001. One with two
    colons or more and no brackets is an IPv6 address. ValueError: no such word, or a port that is
    none."""
    word = word.strip()
    if word.count(":") > 1 and not word.startswith("["):
        return word, None
    match = _ADDRESS.fullmatch(word)
    if match is None or not 1 <= int(match[2] or 1) <= _LARGEST_PORT:
        raise ValueError(
            f"{word!r}: give host or host:port, the port from 1 to {_LARGEST_PORT}, as in "
            "[::1]:8001"
        )
    return match[1].strip("[]"), int(match[2]) if match[2] else None


def split_partner_url(word: str) -> PartnerUrl:
    """Return the parts of one entry of HANABI_PARTNER_URLS; ValueError: it is none."""
    match = _PARTNER_URL.fullmatch(word)
    if match is None or not urlsplit(match[2]).hostname or urlsplit(match[2]).port == 0:
        raise ValueError(f"{word!r}: give NAME=URL#MODEL")
    return PartnerUrl(match[1], match[2].rstrip("/"), match[3])


def is_loopback(host: str) -> bool:
    """Tell whether a host name is this machine by its loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def are_monitors(names: tuple[str, ...]) -> bool:
    """Tell whether these are names of monitors, or `none` alone."""
    if names == (NO_MONITOR,):
        return True
    return bool(names) and all(name in MONITORS for name in names)


Servers = Annotated[str, where(lambda text: [split_address(word) for word in text.split(",")])]
PartnerUrls = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    where(lambda words: len({split_partner_url(word).name for word in words}) == len(words)),
]
HeaderSafe = Annotated[
    SecretStr, where(lambda key: re.fullmatch(r"[!-~]*", key.get_secret_value()))
]
# The name becomes a folder below outputs/downloads.
ProjectName = Annotated[
    str, where(lambda name: re.fullmatch(r"(?!\.+\Z)[^/\\#?%:\r\n]{1,128}", name))
]
ArtifactName = Annotated[
    str, where(lambda name: re.fullmatch(r"(?!\.+$)[A-Za-z0-9._-]{1,128}", name))
]
Aliases = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    AfterValidator(lambda names: tuple(dict.fromkeys(names))),
    where(lambda names: not any(re.search(r"[/:]|^v[0-9]+$", name) for name in names)),
]
Monitors = Annotated[
    tuple[str, ...],
    BeforeValidator(split_list),
    AfterValidator(lambda names: tuple(dict.fromkeys(names))),
    where(are_monitors),
]
