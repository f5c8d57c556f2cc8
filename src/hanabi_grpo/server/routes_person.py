"""The page on which a person plays, and its requests.

`GET /play/` is a static page, the same for everybody. All other requests are POST with JSON, so
that pages of other sites cannot send them, and a game is identified by its token in the body.
"""

from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import playable_scripts
from hanabi_grpo.rollout.person_messages import (
    MoveRequest,
    NewGameRequest,
    StateRequest,
    TokenRequest,
)
from hanabi_grpo.rollout.recordings import recording_to_json
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.door import problem
from hanabi_grpo.server.person_game import PersonGame, public_row
from hanabi_grpo.server.person_games import PersonGames, PersonSettings, playable_games
from hanabi_grpo.server.person_page import page_response
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.settings.refs import BASE, SERVED

PATH = "/play/"
"""Address of the page."""
WAIT_SECONDS = 20.0
"""Longest wait for a new state; the client then asks again."""

_NOT_FOUND = 404
_CONFLICT = 409
_Message = TypeVar("_Message", NewGameRequest, StateRequest, MoveRequest, TokenRequest)


def person_routes(
    games: PersonGames, store: AdapterStore, scheduler: Scheduler, settings: PersonSettings
) -> APIRouter:
    """Build the routes.

    Args:
        games: The games of people.
        store: Tells which adapters a person may play with.
        scheduler: Has the threads in which games are built.
        settings: Tells which games the server was started with.
    """
    router = APIRouter(prefix="/play")

    @router.get("/")
    async def page() -> Response:
        return page_response()

    @router.post("/options")
    async def options() -> Response:
        reading = scheduler.threads.requests(own=False)
        listed = await reading.run(_listed_games, settings)
        versions = store.versions()
        models = [SERVED] if versions else []
        models += [BASE, *(f"{name}@{version}" for name, version in versions.items())]
        models += store.frozen.names()
        return _fresh({"games": listed, "models": models})

    @router.post("/games")
    async def begin(request: Request) -> Response:
        wanted = _read(NewGameRequest, await request.body())
        return await first_state(await games.begin(wanted))

    @router.post("/again")
    async def again(request: Request) -> Response:
        token = games.again(_read(TokenRequest, await request.body()).token)
        if token is None:
            return _no_game()
        return await first_state(token)

    async def first_state(token: str) -> Response:
        game = games.find(token)
        assert game is not None, "it has just started"
        await game.changed(0, WAIT_SECONDS)
        return _fresh({"token": token, "state": game.state()})

    @router.post("/state")
    async def state(request: Request) -> Response:
        wanted = _read(StateRequest, await request.body())
        game = games.find(wanted.token, is_person=not wanted.watching)
        if game is None:
            return _no_game()
        await game.changed(wanted.after, WAIT_SECONDS)
        return _fresh(game.state())

    @router.post("/move")
    async def move(request: Request) -> Response:
        wanted = _read(MoveRequest, await request.body())
        game = games.find(wanted.token)
        if game is None:
            return _no_game()
        game.move(wanted.move, wanted.number)
        await game.changed(wanted.number, WAIT_SECONDS)
        return _fresh(game.state())

    @router.post("/leave")
    async def leave(request: Request) -> Response:
        games.leave(_read(TokenRequest, await request.body()).token)
        return _fresh({})

    @router.post("/record")
    async def record(request: Request) -> Response:
        game = games.find(_read(TokenRequest, await request.body()).token)
        if game is None:
            return _no_game()
        return _record(game)

    return router


def _listed_games(settings: PersonSettings) -> list[dict[str, Any]]:
    """Return the games for the page's menu."""
    known = set(settings.setups)
    listed = []
    for setup in playable_games(settings):
        spec = setup.spec
        is_of_server = setup in known
        listed.append(
            {
                **public_row(setup),
                "rules": spec.hash if is_of_server else None,
                "preset": spec.preset,
                "roles": list(spec.roles),
                "scripts": playable_scripts(setup),
                "is_of_server": is_of_server,
            }
        )
    return listed


def _record(game: PersonGame) -> Response:
    """Return a finished game as one line of a file of recorded games."""
    if game.episode is None:
        return problem(
            _CONFLICT,
            f"status={game.status}: a game has no record before its end, since the record shows "
            "every hidden card. Finish the game first.",
        )
    return _fresh(recording_to_json(Recording(episode=game.episode)))


def _read(struct: type[_Message], body: bytes) -> _Message:
    """Return the message of a body.

    Raises:
        SettingsError: It is malformed; the message names the field and the problem.
    """
    try:
        return read_struct(struct, body)
    except ValueError as error:
        raise SettingsError(f"page request: {error}.") from None


def _fresh(content: Any) -> Response:
    """Return JSON that must not be cached."""
    headers = {"cache-control": "no-store"}
    # A record may contain values that json cannot encode.
    return JSONResponse(msgspec.to_builtins(content), headers=headers)


def _no_game() -> Response:
    return problem(
        _NOT_FOUND,
        "token: no game with this token is open here: it was left, had no move for half an hour, "
        "or the server restarted. Start a new game.",
    )
