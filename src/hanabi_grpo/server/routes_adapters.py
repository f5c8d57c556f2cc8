"""Routes that bring adapters: a trainer's session with its uploads and commits, and adapters that anybody lends."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.rollout.handshake import MAX_VERSION
from hanabi_grpo.server.adapter_loader import Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import problem
from hanabi_grpo.server.identity import ServerIdentity, check_fit, read_session_request
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.sessions import NO_SESSION

_Version = Annotated[int, Query(ge=0, le=MAX_VERSION)]


def adapter_routes(store: AdapterStore, scheduler: Scheduler, identity: ServerIdentity) -> APIRouter:
    """Build the routes."""
    router = APIRouter()
    ownership = store.ownership

    def state() -> dict[str, Any]:
        run_id = ownership.session.run_id if ownership.session else None
        return {"instance_id": identity.instance_id, "run_id": run_id, "versions": store.versions()}

    @router.post("/session/")
    async def open_session(request: Request) -> dict[str, Any]:
        wanted = read_session_request(identity, await request.body())
        check_fit(identity, wanted)
        await store.open_session(wanted)
        return {**identity.model_dump(), **state(), "games_in_flight": scheduler.games_in_flight}

    @router.post("/session/heartbeat")
    async def heartbeat(request: Request) -> Response:
        if ownership.session is None:
            # Not 409: nobody took over, this is a new server process that has to be told of the run.
            return problem(404, NO_SESSION)
        ownership.check(request.headers)
        return JSONResponse(state())

    @router.delete("/session/")
    async def release(request: Request) -> dict[str, Any]:
        ownership.release(request.headers)
        return state()

    @router.put("/adapters/{adapter}")
    async def put_adapter(adapter: str, version: _Version, request: Request) -> dict[str, Any]:
        ownership.check(request.headers)
        store.check_upload(adapter, version)
        upload = await _read_upload(request, adapter, version)
        # Again: another trainer may have taken over while the body came in.
        ownership.check(request.headers)
        return (await store.stage(upload)).receipt

    @router.post("/adapters/commit")
    async def commit(version: _Version, request: Request) -> dict[str, Any]:
        ownership.check(request.headers)
        return {"instance_id": identity.instance_id, "receipts": await store.commit(version)}

    @router.put("/frozen/")
    async def lend(version: _Version, request: Request) -> dict[str, Any]:
        held = await store.frozen.lend(await _read_upload(request, "lent adapter", version))
        receipt = {name: held.receipt[name] for name in ("version", "sha256", "config_sha256")}
        return {"seat": held.name, "name": held.adapter, **receipt, "instance_id": identity.instance_id}

    return router


async def _read_upload(request: Request, adapter: str, version: int) -> Upload:
    try:
        sha256 = request.headers["x-sha256"]
        config = msgspec.json.decode(request.headers["x-peft-config"].encode("latin-1"), type=dict[str, Any])
    except (KeyError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise AdapterError(
            f"{adapter}@{version}: headers x-sha256 and x-peft-config (a JSON object) are needed; "
            f"{type(error).__name__}: {error}"
        ) from error
    return Upload(adapter=adapter, version=version, body=await request.body(), sha256=sha256, config=config)
