"""The app: the key and the limits on every route, errors as JSON, and what the server says of itself."""

import logging
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.logs import LineRing
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import problem, refusal
from hanabi_grpo.server.bodies import BoundedBodies
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.key_check import KeyCheck
from hanabi_grpo.server.limits import Limits
from hanabi_grpo.server.routes_adapters import adapter_routes
from hanabi_grpo.server.routes_play import play_routes
from hanabi_grpo.server.scheduler import Scheduler

logger = logging.getLogger(__name__)


def create_app(
    engine: Engine,
    store: AdapterStore,
    scheduler: Scheduler,
    identity: ServerIdentity,
    ring: LineRing,
    *,
    api_key: str | None,
    host: str = "127.0.0.1",
    limits: Limits | None = None,
) -> FastAPI:
    """Build the app around a running engine.

    Every request must carry `api_key`; None lets in every program of this machine. `host` is the address that the
    server listens on, and `ring` has its newest log lines.
    """
    app = FastAPI(title="hanabi_grpo rollout server", docs_url=None, redoc_url=None, openapi_url=None)
    started = time.time()

    # The one added last is asked first: a stranger without the key is refused before a body is looked at.
    app.add_middleware(BoundedBodies, limits=limits or Limits(), is_owner=store.ownership.is_owner)
    app.add_middleware(KeyCheck, api_key=api_key, host=host)

    @app.exception_handler(HanabiGrpoError)
    async def refused(_: Request, error: HanabiGrpoError) -> Response:
        return refusal(error, engine_dead=engine.is_dead)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        return problem(422, "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()))

    @app.exception_handler(RecursionError)
    async def too_deep(_: Request, error: RecursionError) -> Response:
        return problem(422, "the request is nested too deeply; send plain JSON.")

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # The traceback is in the server's log (uvicorn's); a client learns the kind of fault, not our values.
        logger.error("%s %s failed: %s", request.method, request.url.path[:200], type(error).__name__)
        message = f"the server failed: {type(error).__name__}; its log, in the other terminal, says where."
        return problem(503 if engine.is_dead else 500, message)

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
            "run": public_run(session.run_id) if (session := store.ownership.session) else None,
            "session_alive": store.ownership.is_alive,
            "versions": store.versions(),
            "adapters": store.served(),
            "frozen": store.frozen.words(),
        }

    @app.get("/log/")
    async def log(after: int = 0) -> dict[str, Any]:
        number, lines = ring.since(after)
        return {"next": number, "lines": lines}

    app.include_router(adapter_routes(store, scheduler, identity))
    app.include_router(play_routes(engine, store, scheduler))
    return app
