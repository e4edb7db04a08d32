"""The demo's own calls of the proxy's control plane, and what it reads from the span log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from singletree.demo.errors import ProcessFailed
from spanlog.database import Database, open_database
from spanlog.models import Group, Metric, Rollout
from spanlog.states import ENDED_ROLLOUT_STATES


class Control:
    """An admin's view of one proxy."""

    def __init__(self, url: str, keys: Path) -> None:
        self.url = url
        key = json.loads(keys.read_text(encoding="utf-8"))["admin"]
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=120.0, trust_env=False)

    def put_policy(self, policy: str, **fields: Any) -> None:
        self._call("PUT", f"/api/policies/{policy}", fields)

    def put_engine(self, engine: str, *, policy: str, base_url: str, kind: str) -> dict[str, Any]:
        return self._call(
            "PUT", f"/api/engines/{engine}", {"policy": policy, "base_url": base_url, "kind": kind}
        )

    def version(self, policy: str) -> int:
        """The newest published version."""
        return int(self._call("GET", f"/api/policies/{policy}")["version"])

    def steps(self, policy: str) -> list[dict[str, Any]]:
        """The policy's train steps so far, in order."""
        return self._call("GET", f"/api/steps?policy={policy}")["steps"]

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise ProcessFailed(
                f"the demo's proxy does not answer ({error or type(error).__name__})"
            ) from error
        if not answer.is_success:
            raise ProcessFailed(f"the demo's proxy refused {method} {path}: {answer.text[:300]}")
        return answer.json()


def answers(url: str) -> bool:
    """Whether ``url`` answers 200 now."""
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


class Results:
    """Reads the rollouts of a phase from the span log; their task ids begin with its name."""

    def __init__(self, database: Path) -> None:
        self._database: Database = open_database(f"sqlite:///{database}", migrate=False)

    def ended(self, phase: str) -> int:
        """How many of the phase's rollouts have ended."""
        return sum(state in ENDED_ROLLOUT_STATES for state, _ in self._rows(phase))

    def rewards(self, phase: str) -> list[float | None]:
        """Rewards of the phase's rollouts; None where there is none."""
        return [reward for _, reward in self._rows(phase)]

    def steps_told(self, policy: str) -> int:
        """How many numbers the trainer has written about the policy: grows with each optimiser step of any stage."""
        with self._database.read() as conn:
            return conn.execute(
                select(func.count()).select_from(Metric).where(Metric.policy_id == policy)
            ).scalar_one()

    def close(self) -> None:
        self._database.close()

    def _rows(self, phase: str) -> list[tuple[str, float | None]]:
        query = (
            select(Rollout.state, Rollout.reward)
            .join(Group, Group.id == Rollout.group_id)
            .where(Group.task_id.startswith(f"{phase}-"))
        )
        with self._database.read() as conn:
            return [(row.state, row.reward) for row in conn.execute(query)]
