"""Two servers of the bundled model, one with a chat template; their clients, and what LLM gives offline.

All tests share them: what a test changes of one, it puts back.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import openai
import pytest
from running import SIZES, Running, folder_with_template, running_server

from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams
from roseinfer.server.async_engine import DRAINING, READY

TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}[{{ m.role }}] {{ m.reasoning_content }}{{ m.content }}
{% for call in m.tool_calls or [] %}<{{ call.function.name }}:{{ call.function.arguments | tojson }}>{% endfor %}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


@pytest.fixture
def drained(server: Running) -> Iterator[Running]:
    """The server, for a test that drains its engine: it serves again afterwards."""
    yield server
    if server.engine._stage == DRAINING:  # and has not failed
        server.engine._stage = READY


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a chat template."""
    return folder_with_template(tmp_path_factory.mktemp("chatty"), TEMPLATE)


@pytest.fixture(scope="session")
def chatty(folder: str) -> Iterator[Running]:
    with running_server(folder) as running:
        yield running
        running.server.handle_exit(signal.SIGTERM, None)
    assert running.server.has_ended and running.said[-1] == "every request has ended"


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def chat_client(chatty: Running) -> Iterator[openai.OpenAI]:
    with chatty.client() as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    used = [request.getfixturevalue(name) for name in ("server", "chatty") if name in request.fixturenames]
    yield
    for running in used:
        running.wait_until_idle()


class Offline:
    """What the same engine answers without a server."""

    def __init__(self, folder: str) -> None:
        self.llm = LLM(folder, **SIZES)

    def text(self, prompt: str | list[int], **params) -> str:
        return self.texts(prompt, **params)[0]

    def texts(self, prompt: str | list[int], **params) -> list[str]:
        [output] = self.llm.generate([prompt], SamplingParams(**params), use_tqdm=False)
        return [one.text for one in output.outputs]


@pytest.fixture(scope="session")
def offline(folder: str) -> Offline:
    return Offline(folder)
