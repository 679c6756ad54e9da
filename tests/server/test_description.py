"""schemathesis: requests made from the server's own description, right ones and wrong ones. None is answered 5xx."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from running import running_server

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api():
    with running_server() as running:
        schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        yield schema


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_answered_5xx(case):
    answer = case.call(timeout=60)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
