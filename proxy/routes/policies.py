"""Policies and their versions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy import Connection, Row, select

from proxy.routes.control import ServicesDep, admin_only, now, row_dict, runner_or_admin
from proxy.schemas import Id, PolicyBody
from spanlog import policies
from spanlog.models import Policy, PolicyVersion

router = APIRouter(prefix="/api/policies", tags=["policies"])


@router.put("/{policy_id}", dependencies=[admin_only])
def put_policy(policy_id: Id, body: PolicyBody, services: ServicesDep) -> dict[str, Any]:
    """Creates a policy, or brings it to these settings. Its kind never changes (409)."""
    with services.database.begin() as conn:
        fields = body.model_dump()
        if body.kind == "frozen" and "sampling" not in body.model_fields_set:
            fields["sampling"] = {}
        row = policies.put(conn, id=policy_id, now=now(), **fields)
        view = _view(conn, row)
    services.keys.forget()
    return view


@router.get("", dependencies=[runner_or_admin])
def list_policies(services: ServicesDep) -> dict[str, Any]:
    """All policies."""
    with services.database.read() as conn:
        rows = conn.execute(select(Policy.__table__).order_by(Policy.id)).all()
        return {"policies": [_view(conn, row) for row in rows]}


@router.get("/{policy_id}", dependencies=[runner_or_admin])
def get_policy(policy_id: str, services: ServicesDep) -> dict[str, Any]:
    """A policy, with its training rollouts under way (``in_flight``) and waiting for a step (``unconsumed``)."""
    with services.database.read() as conn:
        return _view(conn, policies.get(conn, policy_id))


@router.get("/{policy_id}/versions", dependencies=[runner_or_admin])
def list_versions(policy_id: str, services: ServicesDep) -> dict[str, Any]:
    """The policy's sets of weights, oldest first."""
    with services.database.read() as conn:
        policies.get(conn, policy_id)
        query = select(PolicyVersion.__table__).where(PolicyVersion.policy_id == policy_id)
        rows = conn.execute(query.order_by(PolicyVersion.version)).all()
    return {"versions": [row_dict(row) for row in rows]}


def _view(conn: Connection, row: Row[Any]) -> dict[str, Any]:
    counts = {"in_flight": policies.in_flight(conn, row.id), "unconsumed": policies.unconsumed(conn, row.id)}
    return row_dict(row) | counts
