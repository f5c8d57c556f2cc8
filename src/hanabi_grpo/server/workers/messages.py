"""What the server and a worker process send each other: frames of MessagePack over a socket."""

import asyncio
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import Episode, Reply

MAX_FORK_MESSAGE = 4096
"""Bytes of a message to or from the fork server, at most."""
_LENGTH_BYTES = 4
"""Of a frame's length, big endian, before its content."""


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    """To the worker: play an episode."""

    number: int
    """Of the episode in this worker; every other message about it carries the same."""
    env: str
    env_config: dict[str, Any]
    split: str
    seed: int
    game: int
    """Number within the task's group."""
    scripts: tuple[str | None, ...]
    """Per seat the script that plays it in the worker; None: it is asked for in the server."""
    teachers: tuple[SeatTeacher | None, ...]
    """Per seat who teaches there, None where nobody does; empty: nobody is taught."""
    names: tuple[str, ...]
    """Per seat the reference of its policy, for the record."""
    instance_id: str


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """To the worker: the reply that it asked for."""

    number: int
    seat: int
    reply: Reply


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """To the worker: nobody waits for the episode any more."""

    number: int


class Running(Struct, frozen=True, kw_only=True, tag="running"):
    """From the worker: code of an episode begins to run; until `Resting` it may block."""

    number: int


class Resting(Struct, frozen=True, kw_only=True, tag="resting"):
    """From the worker: that code has returned; also the first message, when it has started."""


class Ask(Struct, frozen=True, kw_only=True, tag="ask"):
    """From the worker: a seat of a model has to reply, or is told what it says."""

    number: int
    seat: int
    message: str
    given: str | None = None
    """The reply that its teacher gives in its place; None: the model makes one."""
    window: int | None
    """Turns that the player remembers, see `EnvConfig.window`."""
    follows_call: bool = False
    """Whether the message is the result of a tool, see `Observation.follows_call`."""
    num_turns: int
    """Turns of the episode so far."""
    rewards: tuple[float, ...]
    """What each player has got so far."""


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """From the worker: the episode is over."""

    number: int
    episode: Episode


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """From the worker: the episode ended with an exception."""

    number: int
    kind: str
    """Name of the exception's class."""
    message: str


class Fork(Struct, frozen=True, kw_only=True, tag="fork"):
    """To the fork server, with the socket of a new worker as ancillary data: fork it."""


class Kill(Struct, frozen=True, kw_only=True, tag="kill"):
    """To the fork server: end a worker."""

    pid: int


class Forked(Struct, frozen=True, kw_only=True, tag="forked"):
    """From the fork server, in the order of the requests: there is a new worker."""

    pid: int
    problem: str = ""
    """Why there is none."""


class Exited(Struct, frozen=True, kw_only=True, tag="exited"):
    """From the fork server: a worker has ended."""

    pid: int
    code: int
    """Negative: the number of the signal that ended it."""


ToForkServer: TypeAlias = Fork | Kill
FromForkServer: TypeAlias = Forked | Exited
ToWorker: TypeAlias = Start | Answer | Cancel
FromWorker: TypeAlias = Running | Resting | Ask | Ended | Failed

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


_to_fork_server: msgspec.msgpack.Decoder[ToForkServer] = msgspec.msgpack.Decoder(ToForkServer)
_from_fork_server: msgspec.msgpack.Decoder[FromForkServer] = msgspec.msgpack.Decoder(FromForkServer)


def encode(message: ToForkServer | FromForkServer) -> bytes:
    """Return the bytes of a message to or from the fork server."""
    return _encoder.encode(message)


def decode_to_fork_server(content: bytes) -> ToForkServer:
    """Return the message that the fork server has got."""
    return _to_fork_server.decode(content)


def decode_from_fork_server(content: bytes) -> FromForkServer:
    """Return the message that the fork server has sent."""
    return _from_fork_server.decode(content)


def write(writer: asyncio.StreamWriter, message: ToWorker | FromWorker) -> None:
    """Send a message; what the socket does not take at once is kept until it does."""
    content = _encoder.encode(message)
    writer.write(len(content).to_bytes(_LENGTH_BYTES) + content)


async def read_to_worker(reader: asyncio.StreamReader) -> ToWorker | None:
    """Return the next message to a worker; None at the end of the connection."""
    content = await _read_frame(reader)
    return None if content is None else _to_worker.decode(content)


async def read_from_worker(reader: asyncio.StreamReader) -> FromWorker | None:
    """Return the next message from a worker; None at the end of the connection."""
    content = await _read_frame(reader)
    return None if content is None else _from_worker.decode(content)


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
