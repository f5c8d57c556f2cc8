"""Messages between the server and a worker process: MessagePack frames over a socket."""

import asyncio
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import Episode, Reply

MAX_FORK_MESSAGE = 4096
"""Maximum bytes of a message to or from the fork server."""
_LENGTH_BYTES = 4
"""Size of a frame's length, which precedes its content, big-endian."""


class Start(Struct, frozen=True, kw_only=True, tag="start"):
    """To the worker: play an episode."""

    number: int
    """Number of the episode in this worker, also in all other messages about it."""
    env: str
    env_config: dict[str, Any]
    split: str
    seed: int
    game: int
    """Number within the task's group."""
    scripts: tuple[str | None, ...]
    """The script of each seat, which plays in the worker; None: the server replies for the seat."""
    teachers: tuple[SeatTeacher | None, ...]
    """The teacher of each seat, None for none; empty: no seat has a teacher."""
    names: tuple[str, ...]
    """The policy reference of each seat, for the record."""
    instance_id: str


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """To the worker: the requested reply."""

    number: int
    seat: int
    reply: Reply


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """To the worker: the episode is no longer needed."""

    number: int


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """From the worker, its first message: it has started."""


class Ask(Struct, frozen=True, kw_only=True, tag="ask"):
    """From the worker: a model's seat must reply, or is given its reply."""

    number: int
    seat: int
    message: str
    given: str | None = None
    """The teacher's reply for this turn; None: the model replies."""
    window: int | None
    """Number of turns that the player remembers, see `EnvConfig.window`."""
    follows_call: bool = False
    """Whether the message is the result of a tool, see `Observation.follows_call`."""
    num_turns: int
    """Turns of the episode so far."""
    rewards: tuple[float, ...]
    """Rewards of each player so far."""


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
    """To the fork server: fork a worker.

    Its socket and the memory of its `CurrentCall` are sent with it, as ancillary data.
    """


class Kill(Struct, frozen=True, kw_only=True, tag="kill"):
    """To the fork server: end a worker."""

    pid: int


class Forked(Struct, frozen=True, kw_only=True, tag="forked"):
    """From the fork server, in the order of the requests: a new worker was forked, or not."""

    pid: int
    problem: str = ""
    """Why the fork failed; "" if it succeeded."""


class Exited(Struct, frozen=True, kw_only=True, tag="exited"):
    """From the fork server: a worker has ended."""

    pid: int
    code: int
    """Negative: the number of the signal that ended it."""


class _Numbered(Struct, frozen=True, kw_only=True):
    """The part of a worker's message about an episode that the worker itself has written."""

    number: int


class WrongTypeError(Exception):
    """A worker's message has a value of the wrong type, which an environment returned."""

    def __init__(self, problem: str, *, number: int) -> None:
        """Hold what is wrong.

        Args:
            problem: The wrong value's place, its type and the type that it must have.
            number: Number of the episode in the worker.
        """
        super().__init__(problem)
        self.number = number


ToForkServer: TypeAlias = Fork | Kill
FromForkServer: TypeAlias = Forked | Exited
ToWorker: TypeAlias = Start | Answer | Cancel
FromWorker: TypeAlias = Ready | Ask | Ended | Failed

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_numbered = msgspec.msgpack.Decoder(_Numbered)


_to_fork_server: msgspec.msgpack.Decoder[ToForkServer] = msgspec.msgpack.Decoder(ToForkServer)
_from_fork_server: msgspec.msgpack.Decoder[FromForkServer] = msgspec.msgpack.Decoder(FromForkServer)


def encode(message: ToForkServer | FromForkServer) -> bytes:
    """Return the bytes of a message to or from the fork server."""
    return _encoder.encode(message)


def decode_to_fork_server(content: bytes) -> ToForkServer:
    """Decode a message to the fork server."""
    return _to_fork_server.decode(content)


def decode_from_fork_server(content: bytes) -> FromForkServer:
    """Decode a message from the fork server."""
    return _from_fork_server.decode(content)


def write(writer: asyncio.StreamWriter, message: ToWorker | FromWorker) -> None:
    """Send a message; bytes that the socket cannot take yet are buffered."""
    content = _encoder.encode(message)
    writer.write(len(content).to_bytes(_LENGTH_BYTES) + content)


async def read_to_worker(reader: asyncio.StreamReader) -> ToWorker | None:
    """Return the next message to a worker; None at the end of the connection."""
    content = await _read_frame(reader)
    return None if content is None else _to_worker.decode(content)


async def read_from_worker(reader: asyncio.StreamReader) -> FromWorker | None:
    """Return the next message from a worker; None at the end of the connection.

    Raises:
        WrongTypeError: A value in the message has the wrong type; the next one can be read.
    """
    content = await _read_frame(reader)
    if content is None:
        return None
    try:
        return _from_worker.decode(content)
    except msgspec.ValidationError as error:
        number = _numbered.decode(content).number
        raise WrongTypeError(str(error), number=number) from error


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
