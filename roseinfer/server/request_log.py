"""RequestLog: gives each request an id, which its answer has, and writes a line for each where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import CLIENT_GONE
from .request_id import HEADER, REQUEST_ID, id_of

REPLICA_HEADER = b"x-replica"


class RequestLog:
    """An app around the whole other one, so that an answer to a bug has an id as well.

    write: gets a line for each request that has ended; None: no lines are made. replica: the name of the one that this
    app belongs to. An answer has it in place of the id, which Ray's proxy adds itself.
    """

    def __init__(self, app: ASGIApp, write: Callable[[str], object] | None = None, replica: str | None = None) -> None:
        self.app, self._write, self._replica = app, write, replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = id_of(scope["headers"])
        REQUEST_ID.set(request_id)
        status, begun = CLIENT_GONE, perf_counter()
        name, value = (REPLICA_HEADER, self._replica) if self._replica else (HEADER, request_id)

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (name, value.encode())]
            await send(message)

        try:
            await self.app(scope, receive, identified)
        finally:
            if self._write:
                self._write(log_line(scope, status, perf_counter() - begun, request_id))


def log_line(scope: Scope, status: int, seconds: float, request_id: str) -> str:
    """Write a line of the log, without the query, which may hold secrets.

    An example: "2026-11-26T13:50:01.123Z 127.0.0.1 POST /v1/completions 200 0.412 s req-1f...".
    """
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    client = scope["client"][0] if scope.get("client") else "-"
    path = scope["raw_path"].decode("ascii", "backslashreplace")
    return f"{now} {client} {scope['method']} {path} {status} {seconds:.3f} s {request_id}"
