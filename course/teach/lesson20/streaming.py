"""stream_answer: an answer as the bytes that come over the connection, read by a learner's own reader of events."""

from __future__ import annotations

import html
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from roseinfer.display.view import View, card

from ..exercises.solutions import solution
from .server import SECONDS, LessonServer

EventReader: type[Any] = solution("20.1")
LARGEST_CUT = 40  # bytes of a chunk that a reader is handed
SHOWN_BYTES = 300


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


def body_of(answer: bytes) -> bytes:
    """Return the body of an HTTP answer, without its headers and without the sizes of its chunks."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :] if length else b""
    return body


def text_of(events: list[str]) -> str:
    """Join the text of a completion's events."""
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


@dataclass(frozen=True, repr=False)
class StreamedAnswer(View):
    """An answer that was read from a stream.

    raw: the first bytes. num_chunks: how often the reader was fed. text: what it has read; None for nothing yet.
    is_right: whether that is the text of the answer that is not streamed.
    """

    raw: bytes
    num_chunks: int
    text: str | None
    is_right: bool

    def __repr__(self) -> str:
        if self.text is None:
            return "the reader has given no event yet"
        return f"the text of the answer that is not streamed: {'equal' if self.is_right else 'different'}"

    def to_html(self) -> str:
        raw = html.escape(self.raw.decode(errors="replace"))
        read = f"<p>{self!r}</p>"
        if self.text is not None:
            read = f"<p>read from {self.num_chunks} chunks: {html.escape(self.text)}</p>{read}"
        return card(f"<pre style='white-space: pre-wrap'>{raw} ...</pre>{read}")


def stream_answer(
    server: LessonServer, prompt: str, reader: type[Any] = EventReader, max_tokens: int = 24, seed: int = 0
) -> StreamedAnswer:
    """Ask for a stream, cut its bytes at random places, and hand them to a reader of exercise 20.1."""
    with posted(server, streamed(server, max_tokens, prompt)) as connection:
        stream = body_of(read_all(connection))
    rng, reading, at, num_chunks = Random(seed), reader(), 0, 0
    events: list[str] = []
    while at < len(stream):
        size = rng.randint(1, LARGEST_CUT)
        events += reading.feed(stream[at : at + size]) or []
        at, num_chunks = at + size, num_chunks + 1
    _, whole, _ = server.post("/v1/completions", streamed(server, max_tokens, prompt) | {"stream": False})
    text = text_of(events) if events else None
    return StreamedAnswer(stream[:SHOWN_BYTES], num_chunks, text, text == whole["choices"][0]["text"])
