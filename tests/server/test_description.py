"""schemathesis: requests made from the server's own description, right ones and wrong ones. None is answered 5xx."""

from __future__ import annotations

import pytest
from draws import TIMES
from hypothesis import HealthCheck, Phase, given, settings
from running import SIZES, running_server

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")

pytestmark = pytest.mark.slow

POSTS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/generate",
    "/models/{model}/generate",
    "/tokenize",
    "/detokenize",
)
PATHS = {*POSTS, "/v1/models", "/v1/models/{model}", "/health", "/version", "/metrics", "/live"}
EXAMPLES = 15 * TIMES
# A path that takes nothing can be asked in one way alone.
CASES = [
    (path, mode)
    for path in sorted(PATHS)
    for mode in schemathesis.GenerationMode
    if mode is schemathesis.GenerationMode.POSITIVE or path not in ("/health", "/version", "/metrics")
]


@pytest.fixture(scope="module")
def api():
    with running_server(sizes=SIZES | {"max_model_len": 64}) as running:
        schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        yield {operation.path: operation for operation in operations}


def test_it_describes_every_path(api):
    assert api.keys() == PATHS


@pytest.mark.parametrize(("path", "mode"), CASES)
def test_no_request_is_answered_5xx(api, path, mode):
    statuses = set()

    @settings(
        max_examples=EXAMPLES if path in POSTS else 5,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path].as_strategy(generation_mode=mode))
    def ask(case):
        answer = case.call(timeout=60)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}

    ask()
    assert statuses
