"""What every route needs: a body within its limits, long answers in pieces, and errors as JSON."""

from collections.abc import Iterable

import msgspec
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hanabi_grpo.errors import (
    AdapterError,
    BusyError,
    GameParameterError,
    HanabiGrpoError,
    RequestError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.messages import DroppedRow
from hanabi_grpo.server.pacing import in_slices
from hanabi_grpo.types import DroppedGame, Episode

_MAX_DETAIL = 2000
"""Characters of a reason; a refused value may be as long as a body."""
RETRY_SECONDS = 5
"""After which a request that came at a bad moment may be sent again."""


async def played_games(groups: Iterable[Iterable[Episode | DroppedGame]]) -> Response:
    """Return the games of a request's tasks as a `RolloutAnswer`.

    The answer has megabytes. A value is encoded in one go that keeps the interpreter's lock meanwhile, so a thread
    would not help: each game is encoded by itself.

    Args:
        groups: Per task its games, in order of their numbers.
    """
    pieces: list[bytes] = []
    dropped: list[DroppedRow] = []
    async for number, game in in_slices((number, game) for number, group in enumerate(groups) for game in group):
        if isinstance(game, DroppedGame):
            dropped.append(DroppedRow(task=number, game=game.game, reason=game.reason))
        else:
            pieces.append((b"," if pieces else b"") + msgspec.json.encode(game))
    pieces = [b'{"episodes":[', *pieces, b'],"dropped":', msgspec.json.encode(dropped), b"}"]
    length = str(sum(map(len, pieces)))
    return StreamingResponse(in_slices(pieces), media_type="application/json", headers={"content-length": length})


def problem(status: int, message: str, *, close: bool = False, again: bool = False) -> Response:
    """Return an error answer, its reason cut when it is very long, and printable where it quotes what is no text.

    Args:
        status: HTTP status.
        message: The reason.
        close: Whether to end the connection, because the rest of a body is not wanted.
        again: Whether the same request may succeed later; 408 and 429 say so by themselves.
    """
    if len(message) > _MAX_DETAIL:
        message = f"{message[:_MAX_DETAIL]}… ({len(message)} characters)"
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    headers = {"connection": "close"} if close else {}
    if again or status in (408, 429):
        headers["retry-after"] = str(RETRY_SECONDS)
    return JSONResponse({"detail": text}, status_code=status, headers=headers)


def refusal(error: HanabiGrpoError, *, engine_dead: bool) -> Response:
    """Return the answer that an error means: 4xx speaks of the request, 5xx of the server."""
    if isinstance(error, RequestError):
        status = error.status
    elif engine_dead:
        # Whatever failed, it may succeed once the engine is back.
        status = 503
    elif isinstance(error, VersionError):
        status = 409
    else:
        status = 422 if isinstance(error, AdapterError | SettingsError | GameParameterError) else 500
    return problem(status, str(error), again=isinstance(error, BusyError))
