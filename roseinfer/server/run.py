"""serve: one engine, one app and one socket, until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

from roseinfer.arguments import counted
from roseinfer.llm.llm import LLM

from .app import make_app
from .connection import connection_class
from .greeting import greeting, request_for
from .service import Service, Serving
from .settings import ServerSettings

# Between threads. The engine's would otherwise wait 5 ms for the loop's to give way, the length of many a step.
SWITCH_SECONDS = 0.0005
FLUSH_SECONDS = 5  # for answers that are whole to leave, after the engine has drained
STOP_SECONDS = 5  # for the engine's last step to end
KEEP_ALIVE_SECONDS = 30
SLOW_SECONDS = 5.0  # of a start, after which it is explained
SLOW = "still loading: a first start with a kind of model also compiles its kernels"


def serve(serving: Serving, settings: ServerSettings, say: Callable[[str], object]) -> bool:
    """Serve until SIGTERM or Ctrl-C, then drain for at most settings.drain_seconds; a second signal cuts requests off.

    say: gets lines for a terminal. Returns False where a thread is still at work that cannot be ended, on a model that
    it loads, a step that hangs or a grammar that takes long: the process then has to leave by os._exit.

    Raises OSError for an address that cannot be listened at, what make_llm raises, and RuntimeError for an engine that
    has failed.
    """
    listening = listen(settings.host, settings.port)
    allow_open_files(2 * settings.max_connections)
    sys.setswitchinterval(SWITCH_SECONDS)
    say(f"{url_of(listening)} serves {serving.model_name}, once it is loaded")
    server = make_server(replace(serving, make_llm=partial(settled, serving.make_llm)), settings, say)
    with listening:
        server.run(sockets=[listening])
    if server.failure:
        raise server.failure
    return server.has_ended


def settled(make_llm: Callable[[], LLM]) -> LLM:
    """Load a model, and exclude all objects that exist by then from garbage collections.

    A body of many small lists causes several, each of which would look through the million objects of torch and
    transformers.
    """
    llm = make_llm()
    gc.collect()
    gc.freeze()
    return llm


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_server(serving: Serving, settings: ServerSettings, say: Callable[[str], object]) -> EngineServer:
    """Make a server that is complete but for the call of its run(sockets=[...])."""
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
    """Stand for the app in uvicorn's config until there is a loop to make an engine on."""
    raise AssertionError("the app is made before a connection is")


class EngineServer(uvicorn.Server):
    """A uvicorn server that has an engine: loads it while it answers /health, and drains it before it ends."""

    def __init__(
        self, config: uvicorn.Config, serving: Serving, settings: ServerSettings, say: Callable[[str], object]
    ) -> None:
        super().__init__(config)
        self.serving, self.settings, self.say = serving, settings, say
        self.failure: BaseException | None = None
        self.was_ready = self.has_ended = False
        self._stopping: asyncio.Task[None] | None = None
        self._num_signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets, "it is run with one"
        self._url = url_of(sockets[0])
        self.service = Service(self.serving, self.settings, self._fail)
        self.engine = self.service.engine
        self.config.loaded_app = make_app(self.service, self.settings)
        self._loading = asyncio.create_task(self._load(self.service))
        self._at_once = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers leave and the engine's step end, each for a few seconds, and at once after a second signal."""
        leave = asyncio.create_task(self._at_once.wait())
        flush = asyncio.create_task(super().shutdown(sockets))
        await asyncio.wait({leave, flush}, return_when=asyncio.FIRST_COMPLETED)
        if num_unread := len(self.server_state.tasks):
            self.say(f"{counted(num_unread, 'answer')} could not be sent in time")
        for task in (leave, flush, self._loading):
            task.cancel()
        has_read = self.service.close()
        self.has_ended = await self.engine.close(0 if self._at_once.is_set() else STOP_SECONDS) and has_read

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, and end at once at the second."""
        self._num_signals += 1
        if not hasattr(self, "loop"):  # startup is under way, and nothing runs yet
            self.should_exit = True
            return
        self.loop.call_soon_threadsafe(self._stop_soon if self._num_signals == 1 else self._stop_now)

    async def _load(self, service: Service) -> None:
        begun = self.loop.time()
        slow = self.loop.call_later(SLOW_SECONDS, self.say, SLOW)
        try:
            await service.start()
        except BaseException as failure:
            if not isinstance(failure, asyncio.CancelledError):
                self._fail(failure)
            raise
        finally:
            slow.cancel()
        self.was_ready = True
        self.say(f"ready after {self.loop.time() - begun:.1f} s")
        self.say(greeting(self._url, self.settings, request_for(service.llm, self.settings.chat_template)))

    def _stop_soon(self) -> None:
        self.say(f"draining: what runs has {self.settings.drain_seconds:g} s to end")
        self._stopping = asyncio.ensure_future(self._drain(self.settings.drain_seconds))

    def _stop_now(self) -> None:
        self.force_exit = True
        self._at_once.set()
        if self._stopping and not self._stopping.done():
            self._stopping.cancel()
            self._stopping = asyncio.ensure_future(self._drain(0))

    async def _drain(self, seconds: float) -> None:
        num_cut_off = await self.engine.drain(seconds)
        self.say(f"{counted(num_cut_off, 'request')} cut off" if num_cut_off else "every request has ended")
        self.should_exit = True

    def _fail(self, failure: BaseException) -> None:
        self.failure = self.failure or failure
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens there. Raises OSError that names the address."""
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
    """Raise this process's limit on open files to so many, as far as it is allowed: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted: Any = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
