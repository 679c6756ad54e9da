"""A server of the bundled model, and the same model offline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running import SIZES, Running, running_server

from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_until_idle()


class Offline:
    """What the same engine answers without a server."""

    def __init__(self) -> None:
        self.llm = LLM("tiny", **SIZES)

    def text(self, prompt: str | list[int], **params) -> str:
        return self.texts(prompt, **params)[0]

    def texts(self, prompt: str | list[int], **params) -> list[str]:
        [output] = self.llm.generate([prompt], SamplingParams(**params), use_tqdm=False)
        return [one.text for one in output.outputs]


@pytest.fixture(scope="module")
def offline() -> Offline:
    return Offline()
