"""A server in this process, on a thread and a free port: tests look into its engine, and make its steps fail."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from roseinfer.llm.llm import LLM
from roseinfer.paths import TINY
from roseinfer.server.run import EngineServer, Serving, listen, make_server, url_of
from roseinfer.server.settings import ServerSettings

DEADLINE = 60  # seconds for anything that is waited for: only what never comes takes so long
SIZES = {"max_num_seqs": 4, "block_size": 16, "num_kvcache_blocks": 64, "device": "cpu"}


class Asked:
    """A server that is asked. url: its address."""

    def __init__(self, url: str) -> None:
        self.url = url
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self.address = host, int(port)

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """(status, body) of a request; body: JSON, or bytes as they are."""
        status, text, _ = self.exchange(path, body, **headers)
        return status, json.loads(text)

    def exchange(self, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, DEADLINE)

    def post(self, path: str, body: Any, headers: str = "") -> socket.socket:
        """A connection on which a request was sent, and no answer read. headers: further ones, each with its end."""
        connection = self.connect()
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return connection

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not is_so():
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.005)


class Running(Asked):
    """A server that is ready. llm: its own; only looked at. said: its lines for a terminal."""

    def __init__(self, server: EngineServer, url: str, said: list[str] | None = None) -> None:
        super().__init__(url)
        self.server, self.said = server, [] if said is None else said
        self.thread: threading.Thread | None = None

    @property
    def engine(self) -> Any:
        return self.server.engine

    @property
    def llm(self) -> LLM:
        return self.engine.llm

    def is_idle(self) -> bool:
        engine, prompts = self.llm.engine, self.server.service.prompts
        if engine.has_work or self.engine.streams or engine.blocks.num_free != engine.blocks.num_blocks:
            return False
        # What was begun for a client that has gone goes on.
        return not any(lane.is_at_work for lane in (prompts._texts, prompts._conversations, prompts._grammars))

    def wait_until_idle(self) -> None:
        """All blocks are free, and nothing runs."""
        self.wait_for(self.is_idle)
        self.llm.engine.blocks.check()


@contextmanager
def running_server(
    spec: str = "tiny", serving: dict[str, Any] | None = None, sizes: Any = SIZES, **settings: Any
) -> Iterator[Running]:
    """settings: of ServerSettings. serving: of Serving. It must be idle when the block ends."""
    listening = listen("127.0.0.1", 0)
    about = {"make_llm": lambda: LLM(spec, **sizes), "model_name": "tiny"} | (serving or {})
    said: list[str] = []
    server = make_server(Serving(**about), ServerSettings(**settings), said.append)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server")
    thread.start()
    try:
        running = Running(server, url_of(listening), said)
        running.thread = thread
        running.wait_for(lambda: server.was_ready or server.failure is not None)
        assert server.failure is None, server.failure
        yield running
        running.wait_until_idle()
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        assert not thread.is_alive(), "the server did not end"


def folder_with_template(folder: Path, template: str) -> str:
    """The bundled model with a chat template, in an empty folder."""
    for path in TINY.iterdir():
        if path.name != "tokenizer_config.json":
            (folder / path.name).symlink_to(path)
    config = json.loads((TINY / "tokenizer_config.json").read_text()) | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


class Gate:
    """Holds the engine's steps back until it is opened: `with Gate(server) as gate: ...`. failures: raised by the next
    steps in place of what they do."""

    def __init__(self, running: Running) -> None:
        self._runner = running.llm.engine.runner
        self._permits = threading.Semaphore(0)
        self._is_open = False
        self._launch = self._runner.launch
        self.failures: list[Exception] = []

    def __enter__(self) -> Gate:
        self._runner.launch = self._held  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.launch = self._launch  # type: ignore[method-assign]
        self.open()

    def let(self, num_steps: int) -> None:
        """Let so many steps go on."""
        self._permits.release(num_steps)

    def open(self) -> None:
        self._is_open = True
        self._permits.release()

    def _held(self, step: Any) -> None:
        assert self._is_open or self._permits.acquire(timeout=DEADLINE), "the gate was never opened"
        if self.failures:
            raise self.failures.pop(0)
        self._launch(step)
