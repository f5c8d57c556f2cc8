"""The errors that this package raises on purpose.

Each message says what is wrong, the value, what is allowed and the next step; each class is also a
stdlib type, so that callers who know nothing of this package can still catch it.
"""

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

_SHOWN = 80


def shown(value: object) -> str:
    """Return a value as a message quotes it, at most 80 characters; of a huge one only the
    beginning is looked at.

    Example:
        shown("x" * 10**8) == "'" + "x" * 79
    """
    return f"{_beginning(value, _SHOWN)!r:.{_SHOWN}}"


def _beginning(value: Any, size: int) -> Any:
    # Each level shows half as many items, so that deep nesting stays small too.
    if isinstance(value, str | bytes):
        return value[:_SHOWN]
    if isinstance(value, Mapping):
        return {
            _beginning(key, size): _beginning(item, size // 2)
            for key, item in islice(value.items(), size // 4)
        }
    if isinstance(value, list | tuple):
        start = [_beginning(item, size // 2) for item in islice(value, size // 3)]
        return tuple(start) if isinstance(value, tuple) else start
    return value


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return "did you mean 'laptop'? " for a misspelt word, "" where nothing known is near."""
    close = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


class HanabiGrpoError(Exception):
    """Base of every error raised on purpose by this package."""


class SettingsError(HanabiGrpoError, ValueError):
    """A setting, an environment variable or a dataset row is missing, misspelt or out of range."""


class GameParameterError(HanabiGrpoError, ValueError):
    """Game parameters that OpenSpiel would refuse, or would abort the interpreter on."""


class IllegalActionError(HanabiGrpoError, ValueError):
    """An action that the rules do not allow in this position."""


class VerifierError(HanabiGrpoError, RuntimeError):
    """A verifier that failed, so that nobody knows whether an answer is right."""


class ServerError(HanabiGrpoError, ConnectionError):
    """The rollout server cannot be reached, answers with an error, or does not fit this trainer."""


class ServerGoneError(ServerError):
    """The rollout server was not reached, hung up or did not answer in time; asking again later may
    succeed.
    """


class PartnerError(ServerError):
    """A model behind a URL gave no reply that can be used; its game is dropped."""


class PartnerDownError(PartnerError):
    """A model behind a URL gave none again and again, or its budget is used up; the whole request
    ends.
    """


class AdapterError(HanabiGrpoError, ValueError):
    """An adapter upload that must not be served: wrong bytes, names, shapes, rank or version."""


class VersionError(HanabiGrpoError, LookupError):
    """A policy version that is not, or no longer, held by the server."""


class BusyError(VersionError):
    """What the server cannot do now because others use what it needs; the same request succeeds
    when they are done.
    """


class SessionError(VersionError):
    """The rollout server works for another trainer, or for none."""


class ParityError(HanabiGrpoError, RuntimeError):
    """The sampler's logprobs are not those of the trained policy."""


class NonFiniteError(HanabiGrpoError, FloatingPointError):
    """A gradient, reward, return or logprob that is infinite or not a number."""


class RunFolderError(HanabiGrpoError, FileExistsError):
    """A run folder that is already in use."""
