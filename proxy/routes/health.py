"""For load balancers and Prometheus; no key needed, nothing secret in the answers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text

from proxy.routes.control import ServicesDep

router = APIRouter(tags=["operation"])


@router.get("/health")
def health(services: ServicesDep) -> dict[str, Any]:
    """200 while the database answers. Engines that do not are shown, and are no reason to restart the proxy."""
    with services.database.read() as conn:
        conn.execute(text("SELECT 1"))
    return {
        "status": "ok",
        "span_queue": services.writer.queue_depth,
        "engines": [
            {"id": engine, "policy": policy, "state": state, "version": version}
            for engine, policy, state, _, version in services.pool.states()
        ],
    }


@router.get("/metrics", response_class=Response)
def metrics(services: ServicesDep) -> Response:
    """Prometheus metrics."""
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)
