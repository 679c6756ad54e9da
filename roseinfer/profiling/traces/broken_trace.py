"""Readable part of a trace file that is not whole: its events up to the place where it breaks."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from .chrome import GZIP_MAGIC, MOST_BYTES, is_complete

EVENT_LIST = re.compile(r'\A\s*\[|"traceEvents"\s*:\s*\[')
BETWEEN = " \t\r\n,"  # two events
SEPARATOR = re.compile(f"[{BETWEEN}]*")


class WholeEvents(NamedTuple):
    """data: a Chrome trace of the whole events. The bytes are those of the JSON, unpacked if it was gzipped."""

    data: dict[str, Any]
    num_bytes: int
    lost_bytes: int  # at the end, after the last event that could be read


def read_whole_events(path: str | Path) -> WholeEvents | None:
    """Read the events before the break of a file for which read_chrome_trace raises BrokenFile.

    Returns None if there are none: not a trace, cut off within its first event, or gzip whose contents are damaged
    (where it only ends early, what could be unpacked is sound).
    """
    raw = _unpacked(Path(path).read_bytes())
    text = _decoded(raw)
    opening = EVENT_LIST.search(text)
    if not opening:
        return None
    start = opening.end()
    events, end = _events(text, start)
    if not any(map(is_complete, events)):
        return None
    try:  # whole but for the list, or the gzip's checksum
        data, lost = json.loads(text[:start] + text[end:].lstrip(BETWEEN)), 0
    except ValueError:
        closing = "]}" if "traceEvents" in opening.group() else "]"
        data, lost = json.loads(text[:start] + closing), len(raw) - len(text[:end].encode())
    if isinstance(data, list):
        data = {"traceEvents": data}
    data["traceEvents"][:0] = events
    return WholeEvents(data, len(raw), lost)


def _next_start(text: str, end: int) -> int:
    separator = SEPARATOR.match(text, end)
    return separator.end() if separator else end


def _events(text: str, start: int) -> tuple[list[Any], int]:
    """Decode the values from `start` on; return them and where the last whole one ends."""
    decode = json.JSONDecoder().raw_decode
    events: list[Any] = []
    end = start
    while True:
        try:
            event, end = decode(text, _next_start(text, end))
        except (json.JSONDecodeError, RecursionError):
            return events, end
        events.append(event)


def _unpacked(raw: bytes) -> bytes:
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(raw, MOST_BYTES)
    except zlib.error:
        return b""


def _decoded(raw: bytes) -> str:
    """Decode without a character at the end that is cut off; "" if it is not UTF-8."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return ""
