"""Errors that Ray's proxy answers by itself, in the form of the server's: a replica that has ended answers no more.

The process of the proxy imports this module alone, so it needs neither torch nor the server.
"""

from __future__ import annotations

import json

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Return the middlewares that Ray's proxy asks for when it starts."""
    return [Middleware(ProxyErrors)]


class ProxyErrors:
    """ASGI middleware that gives the proxy's own errors the API's form. A replica's errors are JSON, and pass.

    The proxy sends nothing of an answer that a lost replica did not begin, and its other errors are plain text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held: Message | None = None  # the beginning of an answer in plain text
        has_begun = False

        async def in_form(message: Message) -> None:
            nonlocal held, has_begun
            if message["type"] == "http.response.start" and is_of_the_proxy(message):
                held = message
            elif held is None:
                has_begun = True
                await send(message)

        try:
            await self.app(scope, receive, in_form)
        except Exception:  # which Ray has logged
            if has_begun:
                raise
        if not has_begun:
            for part in answer(held or {"status": 500}):
                await send(part)


def is_of_the_proxy(begin: Message) -> bool:
    """Tell whether an answer that begins is an error in plain text."""
    kind = dict(begin.get("headers", ())).get(b"content-type", b"")
    return begin["status"] >= 400 and kind.startswith(b"text/plain")


def answer(held: Message) -> list[Message]:
    """Make the error in the API's form, with the headers of the one in plain text, such as Retry-After."""
    message, kind, code = ERRORS.get(held["status"], LOST)
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    others = [
        (name, value) for name, value in held.get("headers", ()) if name not in (b"content-type", b"content-length")
    ]
    headers = [*others, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return [
        {"type": "http.response.start", "status": held["status"], "headers": headers},
        {"type": "http.response.body", "body": body},
    ]
