"""The HTTP routes: those that ms-swift's `VLLMClient` calls, and ours for sessions and adapters."""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import AdapterError, HanabiGrpoError, SettingsError, VersionError
from hanabi_grpo.logs import LineRing
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import Engine, SamplingConfig
from hanabi_grpo.server.scheduler import Scheduler, unwrap
from hanabi_grpo.wire import PROTOCOL

MAX_BODY_BYTES = 2 << 30


class SessionRequest(BaseModel):
    """What a trainer says of itself; the server refuses one that does not fit."""

    model_config = ConfigDict(extra="forbid")
    protocol: int
    run_id: str = Field(min_length=1, max_length=200)
    adapters: list[str] = Field(min_length=1, max_length=5)
    lora_rank: int
    model_fingerprint: str
    chat_hash: str
    dtype: str


class InferRequest(BaseModel):
    """ms-swift's rollout request, and our `adapters`: per player "adapter@version" or null for the base model."""

    model_config = ConfigDict(extra="ignore")
    infer_requests: list[dict[str, Any]]
    request_config: dict[str, Any] | None = None
    adapters: dict[str, str | None] | None = None


class ServerIdentity(BaseModel):
    """What this server is; a trainer compares it before the first step."""

    protocol: int = PROTOCOL
    instance_id: str
    model: str
    model_fingerprint: str
    chat_hash: str
    dtype: str
    max_lora_rank: int
    max_players: int
    max_model_len: int


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
            return _problem(401, "wrong or missing key: set HANABI_API_KEY to the server's value in this terminal too.")
        return await call_next(request)

    @app.exception_handler(HanabiGrpoError)
    async def refused(_: Request, error: HanabiGrpoError) -> Response:
        status = (
            409 if isinstance(error, VersionError) else 422 if isinstance(error, AdapterError | SettingsError) else 500
        )
        return _problem(status, str(error))

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

    @app.post("/session/")
    async def open_session(wanted: SessionRequest) -> dict[str, Any]:
        _compare(identity, wanted)
        same = store.session is not None and store.session.run_id == wanted.run_id
        if not same and scheduler.games_in_flight:
            running = store.session.run_id if store.session else "an evaluation"
            raise VersionError(
                f"this server is playing {scheduler.games_in_flight} games for {running}; "
                "one trainer at a time. Wait for it, stop it, or start a second server on another PORT."
            )
        if not same:
            await store.open_session(wanted.run_id, wanted.adapters, wanted.lora_rank)
        return {**identity.model_dump(), "run_id": wanted.run_id, "versions": store.versions()}

    @app.put("/adapters/{adapter}")
    async def put_adapter(adapter: str, version: int, request: Request) -> dict[str, Any]:
        try:
            config = json.loads(request.headers["x-peft-config"])
            sha256 = request.headers["x-sha256"]
        except (KeyError, ValueError) as error:
            raise AdapterError(
                f"{adapter}@{version}: headers x-sha256 and x-peft-config (JSON) are needed; {error!r}"
            ) from error
        store.check_run(request.headers.get("x-run-id"))
        body = await _read_body(request)
        return store.stage(adapter, version, body, sha256, config).receipt

    @app.post("/adapters/commit")
    async def commit(version: int, request: Request) -> dict[str, Any]:
        store.check_run(request.headers.get("x-run-id"))
        return {"instance_id": identity.instance_id, "receipts": await store.commit(version)}

    @app.post("/infer/")
    async def infer(request: Request) -> Response:
        try:
            wanted = InferRequest.model_validate_json(await _read_body(request))
        except ValidationError as error:
            raise SettingsError(f"rollout request: {error}") from error
        if wanted.adapters and any(wanted.adapters.values()) and "x-run-id" in request.headers:
            store.check_run(request.headers["x-run-id"])
        play = asyncio.ensure_future(
            scheduler.run(wanted.infer_requests, _sampling(wanted.request_config), wanted.adapters)
        )
        watch = asyncio.ensure_future(_wait_for_hangup(request))
        try:
            await asyncio.wait({play, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not play.done():
                play.cancel()
                return _problem(499, "the client hung up; its games were cancelled.")
            return JSONResponse(play.result())
        except BaseExceptionGroup as group:
            inner = unwrap(group)
            if isinstance(inner, HanabiGrpoError):
                raise inner from group
            return _problem(
                503 if engine.is_dead else 500, f"rollout failed in the engine: {type(inner).__name__}: {inner}"
            )
        finally:
            watch.cancel()

    @app.get("/get_world_size/")
    async def world_size() -> dict[str, int]:
        return {"world_size": engine.config.tensor_parallel_size * engine.config.data_parallel_size}

    @app.post("/get_engine_type/")
    async def engine_type() -> dict[str, Any]:
        return {"engine_type": "AsyncLLMEngine", "enable_multi_turn": True, "use_gym_env": True, "enable_lora": True}

    @app.post("/reset_prefix_cache/")
    async def reset_prefix_cache() -> dict[str, bool]:
        return {"reset": await engine.reset_prefix_cache()}

    async def nothing_to_do() -> dict[str, str]:
        return {"message": "nothing to do: adapters travel over HTTP and text models have no other cache"}

    for route in (
        "reset_encoder_cache",
        "reset_mm_cache",
        "init_communicator",
        "close_communicator",
        "process_weights_after_loading",
    ):
        app.post(f"/{route}/")(nothing_to_do)
    return app


def _compare(identity: ServerIdentity, wanted: SessionRequest) -> None:
    for what, here, there, remedy in (
        ("protocol", identity.protocol, wanted.protocol, "install the same hanabi_grpo version on both sides"),
        ("base model", identity.model_fingerprint, wanted.model_fingerprint, "start both sides with the same MODEL"),
        ("number format", identity.dtype, wanted.dtype, "use the same HANABI_DTYPE on both sides"),
        ("chat format", identity.chat_hash, wanted.chat_hash, "use the same MODEL and HANABI_THINKING on both sides"),
    ):
        if here != there:
            raise SettingsError(f"{what} differs: server {here} ({identity.model}), trainer {there}; {remedy}.")
    if len(wanted.adapters) > identity.max_players:
        raise SettingsError(
            f"{len(wanted.adapters)} adapters: this server was started for {identity.max_players} players; "
            f"restart it with HANABI_PLAYERS={len(wanted.adapters)}."
        )


def _sampling(request_config: dict[str, Any] | None) -> SamplingConfig:
    given = request_config or {}
    for name, neutral in (
        ("top_p", (None, 1, 1.0)),
        ("top_k", (None, 0, -1)),
        ("min_p", (None, 0, 0.0)),
        ("n", (None, 1)),
    ):
        if given.get(name) not in neutral:
            raise SettingsError(
                f"request_config.{name}={given[name]!r}: only {neutral[1]} keeps logprobs those of the policy."
            )
    try:
        return SamplingConfig(
            max_tokens=int(given.get("max_tokens") or 512),
            temperature=float(1.0 if given.get("temperature") is None else given["temperature"]),
        )
    except (TypeError, ValueError) as error:
        raise SettingsError(f"request_config: {error}") from error


async def _read_body(request: Request) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise SettingsError(f"body of more than {MAX_BODY_BYTES} bytes; allowed is {MAX_BODY_BYTES}.")
        chunks.append(chunk)
    return b"".join(chunks)


async def _wait_for_hangup(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(1.0)


def _problem(status: int, message: str) -> Response:
    return JSONResponse({"detail": message}, status_code=status)
