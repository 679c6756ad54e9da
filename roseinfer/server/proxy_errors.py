"""Errors that Ray's proxy answers by itself, in the form of the server's: a replica that has ended answers no more.

The process of the proxy imports this module alone, so it needs neither torch nor the server.
"""

from __future__ import annotations

import json

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .request_id import HEADER, id_of

VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"  # of Ray's, which has the path of `middlewares`
PATH = f"{__name__}.middlewares"
# By status: message, type, code. The own texts of the proxy, with details of the machine, are not passed on.
ERRORS = {
    404: ("there is no such application here, or it has not been loaded yet", "invalid_request_error", "not_found"),
    408: ("the answer took too long", "invalid_request_error", "request_timeout"),
    503: ("no replica can take a request now", "service_unavailable_error", "not_serving"),
}
LOST = ("the replica that had this request has ended before it answered: send it again", "server_error", "replica_lost")


def middlewares() -> list[Middleware]:
    """Called by Ray's proxy when it starts."""
    return [Middleware(ProxyErrors)]


class ProxyErrors:
    """ASGI middleware. Only errors as plain text are the proxy's: those of a replica are JSON, and pass as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0  # of an error whose text is held back

        async def in_form(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start" and is_of_the_proxy(message):
                status = message["status"]
            elif not status:
                await send(message)
            elif not message.get("more_body", False):
                for part in answer(status, scope):
                    await send(part)

        await self.app(scope, receive, in_form)


def is_of_the_proxy(message: Message) -> bool:
    """Whether an answer that begins is an error in plain text."""
    kind = dict(message.get("headers", ())).get(b"content-type", b"")
    return message["status"] >= 400 and kind.startswith(b"text/plain")


def answer(status: int, scope: Scope) -> list[Message]:
    message, kind, code = ERRORS.get(status, LOST)
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (HEADER, id_of(scope["headers"]).encode()),
    ]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    ]
