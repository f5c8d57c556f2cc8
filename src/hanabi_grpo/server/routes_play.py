"""Routes that play games, and those that ms-swift's `VLLMClient` calls beside them."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import problem, read_body
from hanabi_grpo.server.engine import Engine, SamplingConfig
from hanabi_grpo.server.scheduler import Scheduler, unwrap


class InferRequest(BaseModel):
    """ms-swift's rollout request, and our `adapters`: per player "adapter@version" or null for the base model."""

    model_config = ConfigDict(extra="ignore")
    infer_requests: list[dict[str, Any]]
    request_config: dict[str, Any] | None = None
    adapters: dict[str, str | None] | None = None


def play_routes(engine: Engine, store: AdapterStore, scheduler: Scheduler) -> APIRouter:
    """Build the routes."""
    router = APIRouter()

    @router.post("/infer/")
    async def infer(request: Request) -> Response:
        try:
            wanted = InferRequest.model_validate_json(await read_body(request))
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
                return problem(499, "the client hung up; its games were cancelled.")
            return JSONResponse(play.result())
        except BaseExceptionGroup as group:
            inner = unwrap(group)
            if isinstance(inner, HanabiGrpoError):
                raise inner from group
            return problem(
                503 if engine.is_dead else 500, f"rollout failed in the engine: {type(inner).__name__}: {inner}"
            )
        finally:
            watch.cancel()

    @router.get("/get_world_size/")
    async def world_size() -> dict[str, int]:
        return {"world_size": engine.config.tensor_parallel_size * engine.config.data_parallel_size}

    @router.post("/get_engine_type/")
    async def engine_type() -> dict[str, Any]:
        return {"engine_type": "AsyncLLMEngine", "enable_multi_turn": True, "use_gym_env": True, "enable_lora": True}

    @router.post("/reset_prefix_cache/")
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
        router.post(f"/{route}/")(nothing_to_do)
    return router


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


async def _wait_for_hangup(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(1.0)
