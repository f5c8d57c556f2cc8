"""The errors that this package raises on purpose.

Each message says what is wrong, the value, what is allowed and the next step; each class is also a
stdlib type, so that callers who know nothing of this package can still catch it.
"""


class HanabiGrpoError(Exception):
    """Base of every error raised on purpose by this package."""


class SettingsError(HanabiGrpoError, ValueError):
    """A setting, an environment variable or a dataset row is missing, misspelt or out of range."""


class GameParameterError(HanabiGrpoError, ValueError):
    """Game parameters that OpenSpiel would refuse, or would abort the interpreter on."""


class IllegalActionError(HanabiGrpoError, ValueError):
    """An action that the rules do not allow in this position."""


class ServerError(HanabiGrpoError, ConnectionError):
    """The rollout server cannot be reached, answers with an error, or does not fit this trainer."""


class ServerGoneError(ServerError):
    """The rollout server was not reached, hung up or did not answer in time; asking again later may succeed."""


class RequestError(HanabiGrpoError, ValueError):
    """A request that the rollout server does not read to its end: too large, too slow, too many, of another type."""

    def __init__(self, status: int, message: str) -> None:
        """Refuse with this HTTP status and reason."""
        super().__init__(message)
        self.status = status


class AdapterError(HanabiGrpoError, ValueError):
    """An adapter upload that must not be served: wrong bytes, names, shapes, rank or version."""


class VersionError(HanabiGrpoError, LookupError):
    """A policy version that is not, or no longer, held by the server."""


class BusyError(VersionError):
    """What the server cannot do now because others use what it needs; the same request succeeds when they are done."""


class SessionError(VersionError):
    """The rollout server works for another trainer, or for none."""


class ParityError(HanabiGrpoError, RuntimeError):
    """The sampler's logprobs are not those of the trained policy."""


class NonFiniteError(HanabiGrpoError, FloatingPointError):
    """A gradient, reward, return or logprob that is infinite or not a number."""


class RunFolderError(HanabiGrpoError, FileExistsError):
    """A run folder that is already in use."""
