"""The id of a request: the client's own or a new one; in its answer, in errors and in the log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from uuid import uuid4

HEADER = b"x-request-id"
GIVEN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")  # of a client: it stands in headers and in a log
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="none")  # of the one that is being answered


def id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id that the client sent, if it is a plain one, else a new one."""
    given = dict(headers).get(HEADER, b"")
    return given.decode() if GIVEN_ID.fullmatch(given) else f"req-{uuid4().hex}"
