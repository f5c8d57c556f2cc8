"""VLLM_SERVER_HOST: one rollout server, or a comma list of several behind one trainer.

A word of the list is a host, or a host and its port: gpu7, 10.0.0.7:8001, ::1, [::1]:8001. A word with two colons or
more and no brackets is an IPv6 address; one without a port has VLLM_SERVER_PORT.
"""

from typing import Annotated

from pydantic import AfterValidator

MEANING = (
    "Where the rollout server is; a comma list of host or host:port: several, which share the games of training "
    "(other commands use the first)."
)
PORT = "Its port; with several servers, of those that name none."
ALLOWED = (
    "a host name or address, or a comma list of them, each perhaps with :port behind it and named once; an IPv6 "
    "address with a port is written [::1]:8000"
)
_LARGEST_PORT = 65535


def check_servers(text: str) -> str:
    """Return a list of servers as it is.

    Raises:
        ValueError: No such list.
    """
    for word in text.split(","):
        split_address(word)
    return text


Servers = Annotated[str, AfterValidator(check_servers)]


def split_address(word: str) -> tuple[str, int | None]:
    """Return the host and the port of one word; None where it names no port.

    Raises:
        ValueError: No such word.
    """
    word = word.strip()
    if word.startswith("["):
        host, closed, rest = word[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{word!r}: brackets enclose an address, and a port follows them")
        port = rest[1:] if rest else None
    elif word.count(":") == 1:
        host, _, port = word.partition(":")
    else:
        host, port = word, None
    if not host:
        raise ValueError(f"{word!r}: no host")
    if port is None:
        return host, None
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= _LARGEST_PORT):
        raise ValueError(f"{word!r}: a port is a whole number from 1 to {_LARGEST_PORT}")
    return host, int(port)
