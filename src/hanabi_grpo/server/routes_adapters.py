"""Routes of a trainer: its session, and its adapters' uploads and commits."""

import json
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from hanabi_grpo.errors import AdapterError, SettingsError, VersionError
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.answers import read_body
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.scheduler import Scheduler


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


def adapter_routes(store: AdapterStore, scheduler: Scheduler, identity: ServerIdentity) -> APIRouter:
    """Build the routes."""
    router = APIRouter()

    @router.post("/session/")
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

    @router.put("/adapters/{adapter}")
    async def put_adapter(adapter: str, version: int, request: Request) -> dict[str, Any]:
        try:
            config = json.loads(request.headers["x-peft-config"])
            sha256 = request.headers["x-sha256"]
        except (KeyError, ValueError) as error:
            raise AdapterError(
                f"{adapter}@{version}: headers x-sha256 and x-peft-config (JSON) are needed; {error!r}"
            ) from error
        store.check_run(request.headers.get("x-run-id"))
        body = await read_body(request)
        return store.stage(adapter, version, body, sha256, config).receipt

    @router.post("/adapters/commit")
    async def commit(version: int, request: Request) -> dict[str, Any]:
        store.check_run(request.headers.get("x-run-id"))
        return {"instance_id": identity.instance_id, "receipts": await store.commit(version)}

    return router


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
