"""The app: the door before every route, errors as JSON, what the server says of itself, and how
adapters come.

Adapters come in a trainer's session, by uploads and commits, or are lent by anybody.
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

from hanabi_grpo.errors import (
    AdapterError,
    BusyError,
    GameParameterError,
    HanabiGrpoError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.logs import LineRing
from hanabi_grpo.rollout.handshake import MAX_VERSION
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server.adapter_loader import Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.door import BodyCheck, KeyCheck, problem
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.identity import ServerIdentity, check_fit, read_session_request
from hanabi_grpo.server.routes_chat import chat_routes
from hanabi_grpo.server.routes_play import play_routes
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.sessions import NO_SESSION

logger = logging.getLogger(__name__)
_Version = Annotated[int, Query(ge=0, le=MAX_VERSION)]


def create_app(
    engine: Engine,
    store: AdapterStore,
    scheduler: Scheduler,
    identity: ServerIdentity,
    ring: LineRing,
    *,
    api_key: str | None,
    host: str = "127.0.0.1",
) -> FastAPI:
    """Build the app around a running engine.

    Every request must carry `api_key`; None lets in every program of this machine. `host` is the
    address that the server listens on, and `ring` has its newest log lines."""
    app = FastAPI(
        title="hanabi_grpo rollout server", docs_url=None, redoc_url=None, openapi_url=None
    )
    started = time.time()

    # The one added last is asked first: a stranger without the key is refused before a body is
    # looked at.
    app.add_middleware(BodyCheck, upload_bytes=store.max_upload_bytes)
    app.add_middleware(KeyCheck, api_key=api_key, host=host)
    _answer_errors(app, engine)

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
        return JSONResponse(body, status_code=503 if engine.is_dead else 200)

    @app.get("/identity/")
    async def describe() -> dict[str, Any]:
        return {
            **identity.model_dump(),
            "run": public_run(session.trainer.run_id)
            if (session := store.ownership.session)
            else None,
            "session_alive": store.ownership.is_alive,
            "versions": store.versions(),
            "adapters": store.served(),
            "frozen": store.frozen.words(),
        }

    @app.get("/log/")
    async def log(after: int = 0) -> dict[str, Any]:
        number, lines = ring.since(after)
        return {"next": number, "lines": lines}

    _add_adapter_routes(app, store, scheduler, identity)
    app.include_router(play_routes(store, scheduler))
    app.include_router(chat_routes(store, scheduler, identity.model))
    return app


def _answer_errors(app: FastAPI, engine: Engine) -> None:
    """Answer every error as JSON: 4xx speaks of the request, 5xx of the server."""

    @app.exception_handler(HanabiGrpoError)
    async def refused(_: Request, error: HanabiGrpoError) -> Response:
        if engine.is_dead:
            # Whatever failed, it may succeed once the engine is back.
            status = 503
        elif isinstance(error, VersionError):
            status = 409
        else:
            status = (
                422 if isinstance(error, AdapterError | SettingsError | GameParameterError) else 500
            )
        return problem(status, str(error), again=isinstance(error, BusyError))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        return problem(
            422,
            "; ".join(
                f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()
            ),
        )

    @app.exception_handler(ClientDisconnect)
    async def hung_up(request: Request, _: Exception) -> Response:
        return problem(
            499,
            f"{request.method} {request.url.path[:200]}: the client hung up in the middle of its "
            "body.",
        )

    @app.exception_handler(RecursionError)
    async def too_deep(_: Request, error: RecursionError) -> Response:
        return problem(422, "the request is nested too deeply; send plain JSON.")

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # The traceback is in the server's log (uvicorn's); a client learns the kind of fault, not
        # our values.
        logger.error(
            "%s %s failed: %s", request.method, request.url.path[:200], type(error).__name__
        )
        message = (
            f"the server failed: {type(error).__name__}; its log, in the other terminal, "
            "says where."
        )
        return problem(503 if engine.is_dead else 500, message)


def _add_adapter_routes(
    app: FastAPI, store: AdapterStore, scheduler: Scheduler, identity: ServerIdentity
) -> None:
    ownership, instance = store.ownership, {"instance_id": identity.instance_id}

    def state() -> dict[str, Any]:
        run_id = ownership.session.trainer.run_id if ownership.session else None
        return {**instance, "run_id": run_id, "versions": store.versions()}

    @app.post("/session/")
    async def open_session(request: Request) -> dict[str, Any]:
        wanted = read_session_request(identity, await request.body())
        check_fit(identity, wanted)
        await store.open_session(wanted)
        return {**identity.model_dump(), **state(), "games_in_flight": scheduler.games_in_flight}

    @app.post("/session/heartbeat")
    async def heartbeat(request: Request) -> Response:
        if ownership.session is None:
            # Not 409: nobody took over, this is a new server process that has to be told of the
            # run.
            return problem(404, NO_SESSION)
        ownership.check(request.headers)
        return JSONResponse(state())

    @app.delete("/session/")
    async def release(request: Request) -> dict[str, Any]:
        ownership.release(request.headers)
        return state()

    @app.put("/adapters/{adapter}")
    async def put_adapter(adapter: str, version: _Version, request: Request) -> dict[str, Any]:
        ownership.check(request.headers)
        upload = await _read_upload(request, adapter, version)
        ownership.check(request.headers)  # somebody may have taken over while it came
        return (await store.stage(upload)).receipt

    @app.post("/adapters/commit")
    async def commit(version: _Version, request: Request) -> dict[str, Any]:
        ownership.check(request.headers)
        return {**instance, "receipts": await store.commit(version)}

    @app.put("/frozen/")
    async def lend(version: _Version, request: Request) -> dict[str, Any]:
        held = await store.frozen.lend(await _read_upload(request, "frozen adapter", version))
        receipt = {name: held.receipt[name] for name in ("version", "sha256", "config_sha256")}
        return {"seat": held.name, "name": held.adapter, **receipt, **instance}


async def _read_upload(request: Request, adapter: str, version: int) -> Upload:
    try:
        sha256 = request.headers["x-sha256"]
        config = msgspec.json.decode(
            request.headers["x-peft-config"].encode("latin-1"), type=dict[str, Any]
        )
    except (KeyError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise AdapterError(
            f"{adapter}@{version}: headers x-sha256 and x-peft-config (a JSON object) are needed; "
            f"{type(error).__name__}: {error}"
        ) from error
    return Upload(
        adapter=adapter, version=version, body=await request.body(), sha256=sha256, config=config
    )
