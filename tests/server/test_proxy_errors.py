"""What Ray's proxy answers by itself leaves it in the server's form, and what a replica answers as it is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from roseinfer.server.proxy_errors import PATH, middlewares

PLAIN, JSON = b"text/plain; charset=utf-8", b"application/json"


def answered(app, messages: list[dict[str, Any]] | None = None) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of an app's answer that came through the middleware. messages: gets those sent."""
    messages = [] if messages is None else messages

    async def send(message):
        messages.append(message)

    [own] = middlewares()
    asyncio.run(own.cls(app)({"type": "http", "headers": []}, None, send))
    begin, *rest = messages
    assert begin["type"] == "http.response.start" and not rest[-1].get("more_body", False)
    told = {name.decode(): value.decode() for name, value in begin["headers"]}
    return begin["status"], told, b"".join(message["body"] for message in rest)


def answers(status: int, kind: bytes, parts: list[bytes]):
    async def app(scope, receive, send):
        headers = [(b"content-type", kind), (b"x-request-id", b"trace-1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for i, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": i < len(parts)})

    return app


async def is_silent(scope, receive, send):
    """As Ray's proxy is when a replica is lost before it answers."""


async def fails(scope, receive, send):
    raise RuntimeError("the actor died")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (500, "replica_lost", "server_error"),
        (503, "not_serving", "service_unavailable_error"),
        (404, "not_found", "invalid_request_error"),
        (408, "request_timeout", "invalid_request_error"),
        (502, "replica_lost", "server_error"),
    ],
)
@pytest.mark.parametrize("parts", [[b"The actor died: its pid was 7"], [b"The actor ", b"died"], [b""]])
def test_an_error_of_the_proxys_own_has_the_apis_form(status, code, kind, parts):
    got, headers, body = answered(answers(status, PLAIN, parts))
    error = json.loads(body)["error"]
    assert got == status and error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, kind) and "actor" not in error["message"]
    assert headers["content-type"] == "application/json" and headers["x-request-id"] == "trace-1"
    assert int(headers["content-length"]) == len(body)


@pytest.mark.parametrize(("status", "kind"), [(200, PLAIN), (200, JSON), (429, JSON), (500, JSON), (200, b"text/html")])
def test_what_a_replica_answers_passes_as_it_is(status, kind):
    got, headers, body = answered(answers(status, kind, [b"a", b"b"]))
    assert (got, headers["content-type"], body) == (status, kind.decode(), b"ab")


@pytest.mark.parametrize("app", [is_silent, fails])
def test_a_replica_that_is_lost_before_it_answers_is_an_error_in_the_apis_form(app):
    status, headers, body = answered(app)
    assert (status, headers["content-type"], json.loads(body)["error"]["code"]) == (
        500,
        "application/json",
        "replica_lost",
    )


def test_a_stream_that_is_cut_stays_cut():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data", "more_body": True})
        raise RuntimeError("the actor died")

    messages: list[dict[str, Any]] = []
    with pytest.raises(RuntimeError):
        answered(app, messages)
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]


@pytest.mark.slow
def test_the_proxy_imports_it_by_its_path_and_little_else():
    module, _, name = PATH.rpartition(".")
    code = f"import sys, {module}; assert {module}.{name}; assert not {{'torch', 'fastapi'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
