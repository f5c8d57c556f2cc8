"""The app: access checks before every route, errors as JSON, server state, and adapter uploads.

Adapters are uploaded and committed in a trainer's session, or uploaded as guests by any client.
"""

import logging
import time
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hanabi_grpo.envs.access import NOTHING_OUTSIDE, GameAccess
from hanabi_grpo.errors import (
    AdapterError,
    BusyError,
    GameParameterError,
    HanabiGrpoError,
    NoRoomError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.logs import LineRing
from hanabi_grpo.rollout.handshake import MAX_VERSION
from hanabi_grpo.rollout.messages import ProbedIds
from hanabi_grpo.rollout.sampler import EngineHealth
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server.adapter_loader import Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.door import (
    TIMEOUT,
    UNAVAILABLE,
    BodyCheck,
    CrowdCheck,
    KeyCheck,
    problem,
)
from hanabi_grpo.server.identity import ServerIdentity, check_fit, read_session_request
from hanabi_grpo.server.person_games import NOBODY_SET, PersonGames, PersonSettings
from hanabi_grpo.server.routes_chat import chat_routes
from hanabi_grpo.server.routes_person import PATH as PERSON_PAGE
from hanabi_grpo.server.routes_person import person_routes
from hanabi_grpo.server.routes_play import CLIENT_CLOSED, play_routes
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.sessions import NO_SESSION
from hanabi_grpo.server.sleep import wake_for_trainer

logger = logging.getLogger(__name__)

OK = 200
NOT_FOUND = 404
CONFLICT = 409
UNPROCESSABLE = 422
INTERNAL_ERROR = 500

_SHOWN_PATH = 200
"""Characters of a request's path in messages and logs."""
_Version = Annotated[int, Query(ge=0, le=MAX_VERSION)]


def create_app(
    engine: EngineHealth,
    store: AdapterStore,
    scheduler: Scheduler,
    identity: ServerIdentity,
    ring: LineRing,
    *,
    api_key: str | None,
    host: str = "127.0.0.1",
    access: GameAccess = NOTHING_OUTSIDE,
    people: PersonSettings = NOBODY_SET,
) -> FastAPI:
    """Build the app around a running engine.

    Args:
        engine: The health of the engine, or of all engines.
        store: The adapters.
        scheduler: Plays the games.
        identity: Identity of the server.
        ring: The latest log lines, for `/log/`.
        api_key: Key that every request must have; None admits every program on this machine.
        host: Address that the server listens on.
        access: The games and files that requests may name.
        people: The server's settings for games of people on the page.

    Returns:
        The app, ready to be served.
    """
    app = FastAPI(
        title="hanabi_grpo rollout server", docs_url=None, redoc_url=None, openapi_url=None
    )
    # The middleware added last runs first: a client without the key is rejected before its body is
    # read.
    app.add_middleware(BodyCheck, upload_bytes=store.max_upload_bytes)
    app.add_middleware(CrowdCheck, is_owner=store.ownership.is_owner)
    app.add_middleware(KeyCheck, api_key=api_key, host=host, open_paths=(PERSON_PAGE,))
    _add_error_handlers(app, engine)
    _add_state_routes(app, engine, store, scheduler, identity, ring)
    _add_session_routes(app, engine, store, scheduler, identity, access)
    _add_adapter_routes(app, engine, store, identity)
    _add_probe_route(app, store, scheduler)
    app.include_router(play_routes(store, scheduler, access))
    app.include_router(chat_routes(store, scheduler, identity.model))
    games = PersonGames(scheduler, store, access, people)
    app.include_router(person_routes(games, store, scheduler, people))
    return app


def _add_state_routes(
    app: FastAPI,
    engine: EngineHealth,
    store: AdapterStore,
    scheduler: Scheduler,
    identity: ServerIdentity,
    ring: LineRing,
) -> None:
    """Add the routes that are open to every client: health, identity and log."""
    started = time.time()

    @app.get("/health")
    @app.get("/health/")
    async def health() -> Response:
        body = {
            "status": engine.state,
            "engine_silence_s": round(engine.silence, 1),
            "instance_id": identity.instance_id,
            "games_in_flight": scheduler.games_in_flight,
            "games_played": scheduler.games_played,
            "games_retried": scheduler.games_retried,
            "games_failed": scheduler.games_failed,
            "versions": store.versions(),
            "uptime_s": round(time.time() - started, 1),
        }
        return JSONResponse(body, status_code=UNAVAILABLE if engine.is_dead else OK)

    @app.get("/identity/")
    async def describe() -> dict[str, Any]:
        session = store.ownership.session
        return {
            **identity.model_dump(),
            "run": public_run(session.trainer.run_id) if session else None,
            "session_alive": store.ownership.is_alive,
            "versions": store.versions(),
            "adapters": store.served(),
            "frozen": store.frozen.names(),
        }

    @app.get("/log/")
    async def log(after: int = 0) -> dict[str, Any]:
        number, lines = ring.since(after)
        return {"next": number, "lines": lines}


def _add_error_handlers(app: FastAPI, engine: EngineHealth) -> None:
    """Answer every error as JSON: 4xx is the request's fault, 5xx the server's."""

    @app.exception_handler(HanabiGrpoError)
    async def refused(_: Request, error: HanabiGrpoError) -> Response:
        if engine.is_dead or isinstance(error, NoRoomError):
            # The request may succeed once the engine is back, or there is room.
            status = UNAVAILABLE
        elif isinstance(error, VersionError):
            status = CONFLICT
        elif isinstance(error, AdapterError | SettingsError | GameParameterError):
            status = UNPROCESSABLE
        else:
            status = INTERNAL_ERROR
        return problem(status, str(error), again=isinstance(error, BusyError | NoRoomError))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        reasons = []
        for item in error.errors():
            path = ".".join(str(part) for part in item["loc"])
            reasons.append(f"{path}: {item['msg']}")
        return problem(UNPROCESSABLE, "; ".join(reasons))

    @app.exception_handler(ClientDisconnect)
    async def disconnected(request: Request, _: Exception) -> Response:
        return problem(
            CLIENT_CLOSED,
            f"{_describe(request)}: the client closed the connection in the middle of its body.",
        )

    @app.exception_handler(RecursionError)
    async def too_deep(_: Request, error: RecursionError) -> Response:
        return problem(UNPROCESSABLE, "the request is nested too deeply; send plain JSON.")

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        return problem(
            error.status_code,
            f"{request.method} {request.url.path}: {error.detail}",
            again=error.status_code == TIMEOUT,
        )

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # The traceback is in the server's log (uvicorn's); the client gets only the type of the
        # error, no values.
        kind = type(error).__name__
        logger.error("%s failed: %s", _describe(request), kind)
        status = UNAVAILABLE if engine.is_dead else INTERNAL_ERROR
        return problem(status, f"the server failed: {kind}; see its log in the other terminal.")


def _describe(request: Request) -> str:
    """Return method and path of a request, for messages."""
    return f"{request.method} {request.url.path[:_SHOWN_PATH]}"


def _add_session_routes(
    app: FastAPI,
    engine: EngineHealth,
    store: AdapterStore,
    scheduler: Scheduler,
    identity: ServerIdentity,
    access: GameAccess,
) -> None:
    """Add the routes with which a trainer opens, keeps and releases its session."""
    ownership = store.ownership

    def state() -> dict[str, Any]:
        session = ownership.session
        return {
            "instance_id": identity.instance_id,
            "run_id": session.trainer.run_id if session else None,
            "versions": store.versions(),
        }

    @app.post("/session/")
    async def open_session(request: Request) -> dict[str, Any]:
        body = await request.body()
        # In a thread: the check plays the beginning of each game that the trainer names.
        reading = scheduler.threads.sessions
        wanted = await reading.run(read_session_request, identity, body)
        # Checked first, so that nothing is played for a stranger during another run's session.
        ownership.refuse_stranger(wanted)
        await reading.run(check_fit, identity, wanted, access)
        await wake_for_trainer(engine)
        await store.open_session(wanted)
        return {**identity.model_dump(), **state(), "games_in_flight": scheduler.games_in_flight}

    @app.post("/session/heartbeat")
    async def heartbeat(request: Request) -> Response:
        if ownership.session is None:
            # Not 409: this is a new server process without a session, not a takeover by another
            # trainer.
            return problem(NOT_FOUND, NO_SESSION)
        ownership.check(request.headers)
        return JSONResponse(state())

    @app.delete("/session/")
    async def release(request: Request) -> dict[str, Any]:
        ownership.release(request.headers)
        return state()


def _add_adapter_routes(
    app: FastAPI, engine: EngineHealth, store: AdapterStore, identity: ServerIdentity
) -> None:
    """Add the upload routes for adapters of the session and guest adapters."""
    ownership = store.ownership

    @app.put("/adapters/{adapter}")
    async def put_adapter(adapter: str, version: _Version, request: Request) -> dict[str, Any]:
        ownership.check(request.headers)
        upload = await _read_upload(request, adapter, version)
        # Another trainer may have taken over while the body was read.
        ownership.check(request.headers)
        staged = await store.stage(upload)
        return staged.receipt

    @app.post("/adapters/commit")
    async def commit(version: _Version, request: Request) -> dict[str, Any]:
        ownership.check(request.headers)
        await wake_for_trainer(engine)
        receipts = await store.commit(version)
        return {"instance_id": identity.instance_id, "receipts": receipts}

    @app.put("/frozen/")
    async def put_guest(version: _Version, request: Request) -> dict[str, Any]:
        upload = await _read_upload(request, "frozen adapter", version)
        is_owner = ownership.is_owner(request.headers)
        if is_owner:
            await wake_for_trainer(engine)
        is_session = is_owner or not ownership.is_alive
        guest = await store.frozen.add(
            upload,
            is_session=is_session,
            fingerprint=request.headers.get("x-model-fingerprint"),
        )
        return {
            "seat": guest.name,
            "name": guest.adapter,
            "version": guest.version,
            "sha256": guest.sha256,
            "config_sha256": guest.config_sha256,
            "instance_id": identity.instance_id,
        }


def _add_probe_route(app: FastAPI, store: AdapterStore, scheduler: Scheduler) -> None:
    """Add the route with which a trainer probes an adapter's effect, see `Scheduler.probe`."""

    @app.put("/probes/{adapter}")
    async def probe(adapter: str, request: Request) -> Response:
        store.ownership.check(request.headers)
        upload = await _read_upload(request, adapter, 0)
        sequences = _read_sequences(request, adapter)
        # Another trainer may have taken over while the body was read.
        store.ownership.check(request.headers)
        # Runs to its end even if the client disconnects: it is short and leaves nothing behind.
        answer = await scheduler.probe(upload, sequences)
        return Response(msgspec.json.encode(answer), media_type="application/json")


def _read_sequences(request: Request, adapter: str) -> list[list[int]]:
    """Return the token sequences of a probe; AdapterError if they are missing or malformed."""
    try:
        return msgspec.json.decode(request.headers["x-token-ids"], type=ProbedIds)
    except (KeyError, ValueError) as error:
        raise AdapterError(
            f"probe of {adapter}: header x-token-ids (a JSON list of lists of token ids) is "
            f"required; {type(error).__name__}: {error}"
        ) from error


async def _read_upload(request: Request, adapter: str, version: int) -> Upload:
    """Return the upload of a request; AdapterError if a header is missing or malformed."""
    try:
        sha256 = request.headers["x-sha256"]
        config = msgspec.json.decode(
            request.headers["x-peft-config"].encode("latin-1"), type=dict[str, Any]
        )
    except (KeyError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise AdapterError(
            f"{adapter}@{version}: headers x-sha256 and x-peft-config (a JSON object) are "
            f"required; {type(error).__name__}: {error}"
        ) from error
    return Upload(
        adapter=adapter,
        version=version,
        body=await request.body(),
        sha256=sha256,
        config=config,
    )
