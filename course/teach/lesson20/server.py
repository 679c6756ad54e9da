"""start_server, serve_chat: a server in its own process or in the notebook's; both end with the kernel."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from roseinfer.arguments import counted
from roseinfer.bench.serving.server_process import ServerProcess, engine_command

from ..exercises.solutions import solution
from ..measure.progress_bar import progress_bar

if TYPE_CHECKING:
    from .chat_server import ChatServer

T = TypeVar("T")
SECONDS = 60  # for anything that is waited for
LOOK_SECONDS = 0.01
SUM = re.compile(r"^vllm:(\w+)_sum\{.*\} (\S+)$", re.MULTILINE)


class LessonServer:
    """A running server. model: as clients ask for it. max_num_seqs, max_queue: requests that run and wait at most."""

    def __init__(self, model: str, max_num_seqs: int, max_queue: int) -> None:
        self.model, self.max_num_seqs, self.max_queue = model, max_num_seqs, max_queue
        flags = ("--max-num-seqs", str(max_num_seqs), "--max-queue", str(max_queue), "--served-model-name", model)
        self._process = ServerProcess("the server", engine_command(model, *flags))
        self.url = self._process.url
        self.vocab_size: int = self.get("/v1/models")["data"][0]["vocab_size"]

    def __repr__(self) -> str:
        state = "answers" if self._process.is_running else "has ended"
        running = counted(self.max_num_seqs, "request", "runs/run")
        return f"a server of {self.model} that {state}: {running}, {self.max_queue} may wait"

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=SECONDS) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> tuple[int, Any, dict[str, str]]:
        """Send a POST request, and return the answer's status, body and headers. body: JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), dict(error.headers)

    def state(self) -> dict[str, Any]:
        """Ask what the engine is doing: running, waiting, blocks, free_blocks, refused and more."""
        state: dict[str, Any] = self.get("/live")
        return state

    def seconds_so_far(self) -> dict[str, float]:
        """Read the sums of the times that /metrics has, by vLLM's names."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SECONDS) as answer:
            return {name: float(value) for name, value in SUM.findall(answer.read().decode())}

    def wait_for(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until is_so holds, and return the first state for which it does. Raises TimeoutError."""
        deadline = time.monotonic() + SECONDS
        while not is_so(state := self.state()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server has not come to the state that was waited for in {SECONDS} s: {state}")
            time.sleep(LOOK_SECONDS)
        return state

    def wait_until_idle(self) -> dict[str, Any]:
        """Wait until nothing runs or waits, and return that state."""
        return self.wait_for(lambda state: not (state["running"] or state["waiting"] or state["num_requests"]))

    def close(self) -> None:
        """End the server; to call this more than once is no error."""
        self._process.close()


_current: list[LessonServer] = []


def start_server(model: str = "tiny", *, max_num_seqs: int = 8, max_queue: int = 4096) -> LessonServer:
    """Start `roseinfer serve` in its own process on a free port, and wait until it is ready.

    model: as load_model takes it. The server that this function started before is ended. Raises ContenderFailed, with
    the server's last line, where it does not start.
    """
    while _current:
        _current.pop().close()
    with progress_bar("starting the server", 1):
        server = LessonServer(model, max_num_seqs, max_queue)
    _current.append(server)
    return server


def serve_chat(server_class: type[Any] | None, model: str) -> ChatServer:
    """Serve a model's answers to conversations on a free port of this process.

    server_class: of exercise 20.1; None: the course's own. model: as load_model takes it, with a chat template.
    """
    from roseinfer.llm.llm import LLM

    from .chat_server import ChatServer  # here: HTTP's packages take long to import

    with progress_bar("loading the model", 1):
        return ChatServer(server_class or solution("20.1"), LLM(model, max_num_seqs=8))


def in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread, since a notebook's thread has an event loop already, and return its result."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
