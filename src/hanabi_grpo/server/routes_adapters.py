"""Routes that bring adapters: a trainer's session with its uploads and commits, and adapters that anybody lends."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.rollout.handshake import MAX_VERSION
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import problem, read_body
from hanabi_grpo.server.identity import ServerIdentity, check_fit, read_session_request
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.strict_json import strict_json

_Version = Annotated[int, Query(ge=0, le=MAX_VERSION)]


def adapter_routes(store: AdapterStore, scheduler: Scheduler, identity: ServerIdentity) -> APIRouter:
    """Build the routes."""
    router = APIRouter()

    def state() -> dict[str, Any]:
        session = store.session.run_id if store.session else None
        return {"instance_id": identity.instance_id, "run_id": session, "versions": store.versions()}

    @router.post("/session/")
    async def open_session(request: Request) -> dict[str, Any]:
        body = await read_body(request)
        wanted = read_session_request(identity, body)
        check_fit(identity, wanted)
        await store.open_session(wanted)
        return {**identity.model_dump(), **state(), "games_in_flight": scheduler.games_in_flight}

    @router.post("/session/heartbeat")
    async def heartbeat(request: Request) -> Response:
        if store.session is None:
            # Not 409: nobody took over, this is a new server process that has to be told of the run.
            return problem(404, "no trainer has opened a session on this server; open one first (POST /session/).")
        store.check_owner(request.headers)
        return JSONResponse(state())

    @router.delete("/session/")
    async def release(request: Request) -> dict[str, Any]:
        store.release(request.headers)
        return state()

    @router.put("/adapters/{adapter}")
    async def put_adapter(adapter: str, version: _Version, request: Request) -> dict[str, Any]:
        store.check_owner(request.headers)
        store.check_upload(adapter, version)
        sha256, config = _upload_headers(request, f"{adapter}@{version}")
        body = await read_body(request)
        # Again: another trainer may have taken over while the body came in.
        store.check_owner(request.headers)
        return (await store.stage(adapter, version, body, sha256, config)).receipt

    @router.post("/adapters/commit")
    async def commit(version: _Version, request: Request) -> dict[str, Any]:
        store.check_owner(request.headers)
        return {"instance_id": identity.instance_id, "receipts": await store.commit(version)}

    @router.put("/frozen/")
    async def lend(version: _Version, request: Request) -> dict[str, Any]:
        sha256, config = _upload_headers(request, f"lent adapter of version {version}")
        body = await read_body(request)
        held = await store.frozen.lend(version, body, sha256, config)
        return {
            "seat": held.name,
            "name": held.adapter,
            "version": held.version,
            "sha256": held.sha256,
            "config_sha256": held.config_sha256,
            "instance_id": identity.instance_id,
        }

    return router


def _upload_headers(request: Request, name: str) -> tuple[str, dict[str, Any]]:
    try:
        sha256 = request.headers["x-sha256"]
        config = strict_json(request.headers["x-peft-config"].encode("latin-1"))
    except (KeyError, ValueError) as error:
        raise AdapterError(
            f"{name}: headers x-sha256 and x-peft-config (JSON) are needed; {type(error).__name__}: {error}"
        ) from error
    if not isinstance(config, dict):
        raise AdapterError(f"{name}: x-peft-config is a JSON {type(config).__name__}; a JSON object is needed.")
    return sha256, config
