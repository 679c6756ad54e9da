"""serve: one engine, one app and one socket, until SIGTERM."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from roseinfer.llm.llm import LLM

from .app import make_app
from .async_engine import AsyncEngine
from .connection import connection_class
from .service import Service
from .settings import ServerSettings

# Between threads. The engine's would otherwise wait 5 ms for the loop's to give way, the length of many a step.
SWITCH_SECONDS = 0.0005
FLUSH_SECONDS = 5  # for answers that are whole to leave, after the engine has drained
KEEP_ALIVE_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What is served. make_llm: loads the model. end_tokens, most_new_tokens: see server.params.Defaults."""

    make_llm: Callable[[], LLM]
    model_name: str
    end_tokens: tuple[int, ...] = ()
    most_new_tokens: int | None = None


def serve(serving: Serving, settings: ServerSettings, say: Callable[[str], object]) -> bool:
    """Serve until SIGTERM or Ctrl-C, then let requests end within settings.drain_seconds. say: gets lines for a
    terminal. False where the model was still being loaded when it ended.

    Raises OSError for an address that cannot be listened at, what make_llm raises, and RuntimeError for an engine that
    has failed.
    """
    listening = listen(settings.host, settings.port)
    allow_open_files(2 * settings.max_connections)
    sys.setswitchinterval(SWITCH_SECONDS)
    say(f"{url_of(listening)} serves {serving.model_name}, once it is loaded")
    server = make_server(serving, settings, say)
    with listening:
        server.run(sockets=[listening])
    if server.failure:
        raise server.failure
    return server.was_ready


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_server(serving: Serving, settings: ServerSettings, say: Callable[[str], object]) -> EngineServer:
    """A server whose run(sockets=[...]) is all that is left to do."""
    config = uvicorn.Config(
        app=not_made_yet,
        http=connection_class(settings),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FLUSH_SECONDS,
        backlog=2048,
    )
    return EngineServer(config, serving, settings, say)


async def not_made_yet(scope: Scope, receive: Receive, send: Send) -> None:
    """What uvicorn's config has in the app's place until there is a loop to make an engine on."""
    raise AssertionError("the app is made before a connection is")


class EngineServer(uvicorn.Server):
    """A uvicorn server that has an engine: loads it while it answers /health, and drains it before it ends."""

    def __init__(
        self, config: uvicorn.Config, serving: Serving, settings: ServerSettings, say: Callable[[str], object]
    ) -> None:
        super().__init__(config)
        self.serving, self.settings, self.say = serving, settings, say
        self.failure: BaseException | None = None
        self.was_ready = False
        self._is_stopping = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        serving = self.serving
        self.loop = asyncio.get_running_loop()
        self.engine = AsyncEngine(serving.make_llm, self.settings.max_queue, self._fail)
        service = Service(self.engine, serving.model_name, serving.end_tokens, serving.most_new_tokens)
        self.config.loaded_app = make_app(service, self.settings)
        self._loading = asyncio.create_task(self._load(service))
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._loading.cancel()
        await self.engine.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, and the second one ends at once."""
        if self._is_stopping:
            self.should_exit = self.force_exit = True
            return
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self._begin_to_stop)

    async def _load(self, service: Service) -> None:
        begun = self.loop.time()
        try:
            await self.engine.start()
            service.prepare()
        except BaseException as failure:
            if not isinstance(failure, asyncio.CancelledError):
                self._fail(failure)
            raise
        self.was_ready = True
        self.say(f"ready after {self.loop.time() - begun:.1f} s")

    def _begin_to_stop(self) -> None:
        self._stopping = asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        self.say(f"draining: what runs has {self.settings.drain_seconds:g} s to end")
        num_cut_off = await self.engine.drain(self.settings.drain_seconds)
        self.say(f"{num_cut_off} requests were cut off" if num_cut_off else "every request has ended")
        self.should_exit = True

    def _fail(self, failure: BaseException) -> None:
        self.failure = self.failure or failure
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError that names the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        why = error.strerror or str(error)
        where = f"host={host} and port={port} cannot be listened at: {why}"
        raise OSError(f"{where}. Choose another port, or end what listens there") from error
    return listening


def allow_open_files(count: int) -> None:
    """Raise this process's limit on open files to so many, as far as it may: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted: Any = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
