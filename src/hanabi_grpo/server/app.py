"""The app: the key on every route, errors as JSON, and what the server says of itself."""

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import AdapterError, HanabiGrpoError, SettingsError, VersionError
from hanabi_grpo.logs import LineRing
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import problem
from hanabi_grpo.server.engine import Engine
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.routes_adapters import adapter_routes
from hanabi_grpo.server.routes_play import play_routes
from hanabi_grpo.server.scheduler import Scheduler


def create_app(
    engine: Engine,
    store: AdapterStore,
    scheduler: Scheduler,
    identity: ServerIdentity,
    ring: LineRing,
    *,
    api_key: str | None,
) -> FastAPI:
    """Build the app around a running engine."""
    app = FastAPI(title="hanabi_grpo rollout server", docs_url=None, redoc_url=None, openapi_url=None)
    started = time.time()

    @app.middleware("http")
    async def check_key(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if api_key and not hmac.compare_digest(given.encode(), api_key.encode()):
            return problem(401, "wrong or missing key: set HANABI_API_KEY to the server's value in this terminal too.")
        return await call_next(request)

    @app.exception_handler(HanabiGrpoError)
    async def refused(_: Request, error: HanabiGrpoError) -> Response:
        status = (
            409 if isinstance(error, VersionError) else 422 if isinstance(error, AdapterError | SettingsError) else 500
        )
        return problem(status, str(error))

    @app.get("/health")
    @app.get("/health/")
    async def health() -> Response:
        body = {
            "status": "engine dead: restart this server" if engine.is_dead else "ok",
            "instance_id": identity.instance_id,
            "games_in_flight": scheduler.games_in_flight,
            "games_played": scheduler.games_played,
            "versions": store.versions(),
            "uptime_s": round(time.time() - started, 1),
        }
        return JSONResponse(body, status_code=503 if engine.is_dead else 200)

    @app.get("/identity/")
    async def describe() -> dict[str, Any]:
        session = store.session.run_id if store.session else None
        return {**identity.model_dump(), "run_id": session, "versions": store.versions()}

    @app.get("/log/")
    async def log(after: int = 0) -> dict[str, Any]:
        number, lines = ring.since(after)
        return {"next": number, "lines": lines}

    app.include_router(adapter_routes(store, scheduler, identity))
    app.include_router(play_routes(engine, store, scheduler))
    return app
