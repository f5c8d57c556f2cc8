"""The errors that this package raises on purpose.

Each message states the problem, the value, what is allowed and the next step. Each class is also a
stdlib type, so callers that do not know this package can still catch it.
"""

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_MAX_SHOWN = 80
"""Maximum characters of a value that a message quotes."""


def shown(value: object) -> str:
    """Return a value as a message quotes it, at most 80 characters.

    Only the beginning of a huge value is read.

    Example:
        shown("x" * 10**8) == "'" + "x" * 79
    """
    return repr(_beginning(value, _MAX_SHOWN))[:_MAX_SHOWN]


def _beginning(value: Any, size: int) -> Any:
    """Return the part of a value whose text is likely to fill `size` characters."""
    # Each level shows half as many items, so deeply nested values stay small too.
    if isinstance(value, str | bytes):
        return value[:_MAX_SHOWN]
    if isinstance(value, Mapping):
        beginning = {}
        for key, item in islice(value.items(), size // 4):
            beginning[_beginning(key, size)] = _beginning(item, size // 2)
        return beginning
    if isinstance(value, list | tuple):
        items = [_beginning(item, size // 2) for item in islice(value, size // 3)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "did you mean 'laptop'? " for a misspelled name, "" if no known name is close."""
    close = difflib.get_close_matches(str(name)[:_MAX_SHOWN], known, n=1)
    if not close:
        return ""
    return f"did you mean {close[0]!r}? "


class HanabiGrpoError(Exception):
    """Base class of every error raised on purpose by this package."""


class SettingsError(HanabiGrpoError, ValueError):
    """A setting, an environment variable or a dataset row is missing, misspelled or invalid."""


class GameParameterError(HanabiGrpoError, ValueError):
    """Game parameters that OpenSpiel would refuse, or would abort the interpreter on."""


class IllegalActionError(HanabiGrpoError, ValueError):
    """An action that the rules do not allow in this position."""


class VerifierError(HanabiGrpoError, RuntimeError):
    """A verifier that failed, so it is unknown whether an answer is right."""


class RewardError(HanabiGrpoError, RuntimeError):
    """A reward function that raised, or that returned invalid numbers."""


class ServerError(HanabiGrpoError, ConnectionError):
    """The rollout server cannot be reached, answers with an error, or does not fit this trainer."""


class ServerGoneError(ServerError):
    """The rollout server was not reached, closed the connection or did not answer in time.

    Asking again later may succeed.
    """


class PartnerError(ServerError):
    """A model behind a URL gave no usable reply; its game is dropped."""


class PartnerDownError(PartnerError):
    """A model behind a URL failed repeatedly, or its budget is used up.

    The whole request ends.
    """


class AdapterError(HanabiGrpoError, ValueError):
    """An adapter upload that must not be served: wrong bytes, names, shapes, rank or version."""


class NoRoomError(AdapterError):
    """An adapter that cannot be kept now: the machine has no disk space or no descriptors left.

    The same upload succeeds once some are free.
    """


class VersionError(HanabiGrpoError, LookupError):
    """A policy version that the server does not hold, or no longer holds."""


class BusyError(VersionError):
    """A request that the server cannot serve now because other clients use what it needs.

    The same request succeeds when they are done.
    """


class SessionError(VersionError):
    """The rollout server works for another trainer, or for none."""


class ParityError(HanabiGrpoError, RuntimeError):
    """The sampler's logprobs are not those of the trained policy."""


class NonFiniteError(HanabiGrpoError, FloatingPointError):
    """A gradient, reward, return or logprob that is infinite or not a number."""


class TrainingError(HanabiGrpoError, RuntimeError):
    """A trainer's process that ended with an exit code."""


class RunFolderError(HanabiGrpoError, FileExistsError):
    """A run folder that is already in use."""


class UnreadableError(RunFolderError):
    """The operating system refused to read a checkpoint, which may still be intact."""
