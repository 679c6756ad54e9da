"""Requests over a bare connection, whose answers may be read late, or not at all."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .server import SECONDS, LessonServer


@contextmanager
def posted(server: LessonServer, body: dict[str, Any]) -> Iterator[socket.socket]:
    """Yield a connection on which a request was sent, and nothing of its answer was read."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nHost: {server.address[0]}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(server.address, SECONDS) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield connection


def streamed(server: LessonServer, max_tokens: int, prompt: Any = "Return") -> dict[str, Any]:
    """Make the body of a request for a stream of exactly so many tokens."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    return body | {"temperature": 0, "ignore_eos": True}


def read_all(connection: socket.socket) -> bytes:
    """Read what comes until the server closes the connection."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def text_of(answer: bytes) -> str:
    """Join the text of a completion's events."""
    lines = [line.removeprefix("data: ") for line in answer.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])
