"""Limits: what is checked of a request before the app sees it: host, key, and the body's size and time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hmac import compare_digest

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import CLIENT_GONE, ApiError
from .hosts import OwnHosts
from .settings import KIB, ServerSettings

GUARDED = ("/v1/", "/generate", "/models/", "/tokenize", "/detokenize", "/live")
LINGER_SECONDS, LINGER_BYTES = 2.0, 16 * KIB * KIB  # that a refused body is read for, and of it
CLOSE = {"Connection": "close"}  # what the client still sends is not read


class Limits:
    """ASGI middleware with the limits. It reads a whole body before it calls the app, so a slow one holds no slot."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings
        self._own_hosts = OwnHosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._own_hosts.check(dict(scope["headers"]))
            self._check_key(scope)
            body = await self._body(scope, receive) if scope["method"] in ("POST", "PUT", "PATCH") else None
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive if body is None else _replayed(body, receive), send)

    def _check_key(self, scope: Scope) -> None:
        """Raise ApiError for a wrong key. The check takes the same time for every wrong key of a length."""
        key = self.settings.api_key
        if key is None or not scope["path"].startswith(GUARDED):
            return
        scheme, _, sent = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not compare_digest(sent.strip(), key.strip().encode()):
            raise ApiError(
                "the header Authorization must be 'Bearer ' and the server's API key",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"} | CLOSE,
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body. Raises ApiError for one that is too large, or takes too long."""
        most = self.settings.max_body_kib * KIB
        told = dict(scope["headers"]).get(b"content-length", b"")
        body = None
        if not (told.isdigit() and int(told[:20]) > most):
            try:
                body = await asyncio.wait_for(self._read(receive, most), self.settings.body_seconds)
            except asyncio.TimeoutError:
                why = f"the body must be there within {self.settings.body_seconds:g} s"
                raise ApiError(why, status=408, code="body_timeout", headers=CLOSE) from None
        if body is None:
            await self._read_on(receive)
            why = f"the body must have at most {self.settings.max_body_kib:,} KiB"
            raise ApiError(why, status=413, code="body_too_large", headers=CLOSE)
        return body

    async def _read(self, receive: Receive, most: int) -> bytes | None:
        """Read the body; None for one that is too large."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError("the client has gone", status=CLIENT_GONE, headers=CLOSE)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                return None
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _read_on(self, receive: Receive) -> None:
        """Read and drop some of what the client still sends: closed while it sends, it would not read the answer."""

        async def read() -> None:
            size, more = 0, True
            while more and size < LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read(), LINGER_SECONDS)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Give the body once, and then what comes after it: that the client has gone."""
    has_body = True

    async def replay() -> Message:
        nonlocal has_body
        if has_body:
            has_body = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
