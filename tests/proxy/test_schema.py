"""The control plane against its own description: whatever the schema allows, or forbids, is answered as it says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from spanlog.database import open_database
from tests.proxy.conftest import ADMIN, serve
from tests.proxy.fake_engine import FakeEngine

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A proxy that holds one of everything, as its description says it is."""
    url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'spans.db'}"
    open_database(url, migrate=True).close()
    fake = FakeEngine().start()
    try:
        with serve(url) as proxy:
            proxy.policy()
            proxy.engine(fake)
            _, key = proxy.rollout()
            assert proxy.chat(key).status_code == 200
            yield schemathesis.openapi.from_url(proxy.url + "/openapi.json", config=SchemathesisConfig())
    finally:
        fake.stop()


def test_every_operation_keeps_to_its_description(described: Any) -> None:
    """Each with bodies, ids and queries that its schema allows, and some that it forbids."""
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) >= 20
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    failures: list[str] = []
    for operation, mode in product(operations, modes):
        try:
            _examine(operation, mode)
        except Unsatisfiable:  # nothing can be said against a path without parameters
            continue
        except (Exception, BaseExceptionGroup) as failure:  # all of them, not the first alone
            failures.append(f"{operation.label} {mode}: {failure}")
    assert not failures, "\n\n".join(failures)


def _examine(operation: Any, mode: schemathesis.GenerationMode) -> None:
    @settings(
        max_examples=8,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=30)

    check()
