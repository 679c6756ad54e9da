"""Connection: uvicorn's HTTP connection with the limits that it lacks: on headers, on idle ones, on slow readers."""

from __future__ import annotations

import json
from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from roseinfer.arguments import counted

from .errors import ApiError
from .settings import KIB, ServerSettings


def connection_class(settings: ServerSettings) -> type[HttpToolsProtocol]:
    """Make the class of which uvicorn makes one object for each connection."""
    return type("LimitedConnection", (Connection,), {"settings": settings})


class Connection(HttpToolsProtocol):
    """A connection with limits. One that is refused gets an answer in the API's form, and is closed."""

    settings: ServerSettings

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._header_timer: TimerHandle | None = None  # runs until the headers of a request are there
        self._send_timer: TimerHandle | None = None  # runs while the client takes nothing
        self._num_header_bytes = 0

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self.settings.max_connections:
            self._refuse(
                503, f"{counted(self.settings.max_connections, 'connection', 'is/are')} open, and no more may be"
            )
        else:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        cancel(self._header_timer)
        self._header_timer = None
        cancel(self._send_timer)
        self._send_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._header_timer:
            self._count_header_bytes(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_header_bytes = 0
        self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value) + 4)  # with ": " and the end of the line
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        cancel(self._header_timer)
        self._header_timer = None
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.transport.is_closing():
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self._send_timer or self._later(self.settings.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        cancel(self._send_timer)
        self._send_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(400, "this is not HTTP/1.1")

    def _await_headers(self) -> None:
        seconds = self.settings.header_seconds
        late = f"the headers of a request must be there within {seconds:g} s"
        self._header_timer = self._header_timer or self._later(seconds, lambda: self._refuse(408, late))

    def _count_header_bytes(self, count: int) -> None:
        self._num_header_bytes += count
        if self._num_header_bytes > self.settings.max_header_kib * KIB:
            self._refuse(431, f"the headers must have at most {self.settings.max_header_kib} KiB")

    def _later(self, seconds: float, call: Callable[[], object]) -> TimerHandle:
        return self.loop.call_later(seconds, call)

    def _refuse(self, status: int, why: str) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(ApiError(why, status=status, code="connection_refused").body())
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
        self.transport.close()


def cancel(timer: TimerHandle | None) -> None:
    if timer:
        timer.cancel()
