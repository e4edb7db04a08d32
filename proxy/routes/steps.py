"""Train steps, as the trainer committed them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query
from sqlalchemy import select

from proxy.routes.control import ServicesDep, row_dict, runner_or_admin
from proxy.schemas import MOST
from spanlog.models import TrainStep

router = APIRouter(prefix="/api/steps", tags=["steps"])


@router.get("", dependencies=[runner_or_admin])
def list_steps(
    services: ServicesDep,
    policy: str | None = None,
    after: int = Query(0, ge=0, le=MOST, description="Only steps with a higher number."),
    limit: int = Query(1000, ge=1, le=10_000),
) -> dict[str, Any]:
    """Steps in order of number, with their metrics. ``void``: a restart went back before it."""
    query = select(TrainStep.__table__).where(TrainStep.number > after)
    if policy is not None:
        query = query.where(TrainStep.policy_id == policy)
    query = query.order_by(TrainStep.number, TrainStep.committed_at).limit(limit)
    with services.database.read() as conn:
        return {"steps": [row_dict(row) for row in conn.execute(query)]}
