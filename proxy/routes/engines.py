"""Engines: registering them (with probes), looking at them, taking them out of service."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from fastapi import APIRouter, Response
from sqlalchemy import Connection, delete, select, update

from proxy.engine.health import version_of_label
from proxy.engine.register import EngineRefused, probe_engine
from proxy.routes.control import ServicesDep, admin_only, now, row_dict, runner_or_admin
from proxy.schemas import EngineBody, Id
from proxy.services import Services
from spanlog import policies
from spanlog.database import Database
from spanlog.errors import Conflict, NotFound
from spanlog.locks import lock_engine
from spanlog.models import Engine, EngineSwap
from spanlog.states import EngineState, Mode, PolicyKind
from spanlog.upsert import insert_or_ignore

router = APIRouter(prefix="/api/engines", tags=["engines"])
log = structlog.get_logger("proxy.engines")


@router.put("/{engine_id}", dependencies=[admin_only])
def put_engine(engine_id: Id, body: EngineBody, services: ServicesDep) -> dict[str, Any]:
    """Probes an engine and registers it; again after a restart or a change of address.

    A wrong setting is refused with 422 and the flag to change. The engine is ``ready`` if it serves the policy's
    current version, else ``stale``: then it takes no traffic until the trainer has published to it. 409 if another
    engine has its address.
    """
    base_url = str(body.base_url).rstrip("/").removesuffix("/v1")
    with services.database.read() as conn:
        policy = policies.get(conn, body.policy)
    training = policy.kind == PolicyKind.TRAIN
    if training and body.kind != "vllm":
        raise EngineRefused(
            "engine_kind",
            f"Policy '{policy.id}' trains and needs token ids: register a vLLM engine (kind 'vllm').",
        )
    _refuse_while_swapping(services.database, engine_id)
    key = services.settings.engine_key
    capabilities, label = probe_engine(
        base_url,
        kind=body.kind,
        model=policy.model,
        training=training,
        exact=policy.mode == Mode.EXACT,
        key=key.get_secret_value() if key else None,
    )
    _save(services, engine_id, body, base_url, capabilities, label)
    _refresh(services)
    return get_engine(engine_id, services)


@router.get("", dependencies=[runner_or_admin])
def list_engines(services: ServicesDep, policy: str | None = None) -> dict[str, Any]:
    """All engines, or those of one policy."""
    query = select(Engine.__table__).order_by(Engine.id)
    if policy is not None:
        query = query.where(Engine.policy_id == policy)
    with services.database.read() as conn:
        return {"engines": [row_dict(row) for row in conn.execute(query)]}


@router.get("/{engine_id}", dependencies=[runner_or_admin])
def get_engine(engine_id: str, services: ServicesDep) -> dict[str, Any]:
    """One engine."""
    with services.database.read() as conn:
        row = conn.execute(select(Engine.__table__).where(Engine.id == engine_id)).one_or_none()
    if row is None:
        raise NotFound(f"no engine {engine_id}: register it with PUT /api/engines/{engine_id}")
    return row_dict(row)


@router.post("/{engine_id}/drain", dependencies=[admin_only])
def drain_engine(engine_id: str, services: ServicesDep) -> dict[str, Any]:
    """Takes the engine out of rotation; calls at it finish. Register it again to bring it back."""
    with services.database.begin() as conn:
        if lock_engine(conn, engine_id).state == EngineState.SWAPPING:
            raise Conflict(f"engine {engine_id} is in a weight swap: try again when it is over")
        conn.execute(update(Engine).where(Engine.id == engine_id).values(state=EngineState.DRAINING))
    _refresh(services)
    return get_engine(engine_id, services)


@router.delete("/{engine_id}", dependencies=[admin_only], status_code=204)
def delete_engine(engine_id: str, services: ServicesDep) -> Response:
    """Forgets an engine and its swap clock (written spans keep their labels). One in service is refused: drain it."""
    with services.database.begin() as conn:
        state = lock_engine(conn, engine_id).state
        if state in (EngineState.READY, EngineState.SWAPPING):
            raise Conflict(f"engine {engine_id} is {state}: POST /api/engines/{engine_id}/drain first")
        conn.execute(delete(EngineSwap).where(EngineSwap.engine_id == engine_id))
        conn.execute(delete(Engine).where(Engine.id == engine_id))
    _refresh(services)
    return Response(status_code=204)


def _refuse_while_swapping(database: Database, engine_id: str) -> None:
    """Only the trainer moves an engine out of a swap; a paused engine would hold the probes up, too."""
    with database.read() as conn:
        state = conn.execute(select(Engine.state).where(Engine.id == engine_id)).scalar_one_or_none()
    if state == EngineState.SWAPPING:
        raise Conflict(f"engine {engine_id} is in a weight swap: try again when it is over")


def _save(
    services: Services,
    engine_id: str,
    body: EngineBody,
    base_url: str,
    capabilities: dict[str, Any],
    label: str | None,
) -> None:
    moment = now()
    with services.database.begin() as conn:
        _refuse_second_name(conn, engine_id, body.kind, base_url)
        policy = policies.get(conn, body.policy)
        version = policy.version if label is None else version_of_label(label, policy.id, policy.version)
        current = version == policy.version
        values = {
            "policy_id": policy.id,
            "base_url": base_url,
            "kind": body.kind,
            "state": EngineState.READY if current else EngineState.STALE,
            "version": version if current else None,
            "capabilities": capabilities,
            "error": None
            if current
            else f"serves weights labelled '{label}': the trainer must publish to it",
            "registered_at": moment,
            "seen_at": moment,
        }
        if not insert_or_ignore(conn, Engine, {"id": engine_id, **values}):
            if lock_engine(conn, engine_id).state == EngineState.SWAPPING:
                raise Conflict(f"engine {engine_id} is in a weight swap: try again when it is over")
            conn.execute(update(Engine).where(Engine.id == engine_id).values(**values))


def _refuse_second_name(conn: Connection, engine_id: str, kind: str, base_url: str) -> None:
    """One server, one engine: a swap under one name would leave the other's version, and its spans', wrong [I2]. Servers
    whose weights nobody swaps may answer for several policies."""
    query = select(Engine.id, Engine.kind).where(Engine.base_url == base_url, Engine.id != engine_id)
    for other in conn.execute(query.order_by(Engine.id)):
        if "vllm" in (kind, other.kind):
            raise Conflict(
                f"engine {other.id} has the address {base_url}: register it under that id, or drain it and "
                f"DELETE /api/engines/{other.id} first"
            )


def _refresh(services: Services) -> None:
    """The pool lives in the event loop; this runs in a thread. Best effort: what was changed is committed, and the watch
    reads it within its interval."""
    try:
        asyncio.run_coroutine_threadsafe(services.watch.refresh(), services.loop).result(timeout=10)
    except Exception as error:
        log.warning("engines not read at once", error=f"{type(error).__name__}: {error}")
