"""Chrome trace files, as torch.profiler writes them: reading, writing, and the complete events in them.

Format: "Trace Event Format" (Google, 2016). Times in the file are microseconds; here they are nanoseconds.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

GZIP_MAGIC = b"\x1f\x8b"
MOST_BYTES = 4 * 2**30  # of a file's JSON: a gzip file can hold a thousand times its own size


class Slice(NamedTuple):
    """One complete event (ph == "X"). ts and dur in ns.

    pid and tid are the file's numbers. A label there ("stream 7"), or nothing, gets a number of its own below 0.
    """

    ts: int
    dur: int
    cat: str
    name: str
    tid: int
    pid: int
    args: dict[str, Any] | None

    @property
    def end(self) -> int:
        return self.ts + self.dur


def read_chrome_trace(path: str | Path) -> dict[str, Any]:
    """Parse a trace, gzipped or not. Raises FileNotFoundError, and ValueError if it is not a whole Chrome trace."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such trace file")
    raw = path.read_bytes()
    try:
        text = decompressed(raw) if raw.startswith(GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"path={str(path)!r}: damaged gzip file ({error})") from error
    if len(text) > MOST_BYTES:
        raise ValueError(f"path={str(path)!r}: its JSON has more than {MOST_BYTES:,} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"path={str(path)!r}: not JSON ({error})") from error
    return as_chrome_trace(data, where=f"path={str(path)!r}")


def decompressed(raw: bytes) -> bytes:
    """Unpack a gzip file, or the first MOST_BYTES + 1 bytes of one that is too large."""
    with gzip.open(io.BytesIO(raw)) as file:
        return file.read(MOST_BYTES + 1)


def as_chrome_trace(data: Any, where: str) -> dict[str, Any]:
    """Check parsed JSON and bring the format's second form, a bare list of events, to the first."""
    if isinstance(data, list):
        data = {"traceEvents": data}
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise ValueError(f"{where}: not a Chrome trace; expected an object with a list 'traceEvents'")
    if not any(map(is_complete, data["traceEvents"])):
        raise ValueError(f"{where}: the trace has no complete events (ph 'X'); was anything profiled?")
    return data


def write_chrome_trace(data: dict[str, Any], path: str | Path) -> None:
    """Write to *.json, or gzipped to *.json.gz. Raises ValueError for another suffix."""
    path = Path(path)
    if not path.name.endswith((".json", ".json.gz")):
        raise ValueError(f"path={str(path)!r}: a trace is saved as *.json or *.json.gz")
    path.write_bytes(gzipped(data) if path.name.endswith(".gz") else _encoded(data))


def gzipped(data: dict[str, Any]) -> bytes:
    """Compress to the content of *.json.gz; the same trace gives the same bytes."""
    return gzip.compress(_encoded(data), mtime=0)


def complete_slices(data: dict[str, Any]) -> list[Slice]:
    """List all complete events in time order, an enclosing event before those it encloses.

    Raises ValueError, naming the event, for a time that is no finite number.
    """
    numbers: dict[str, int] = {}
    slices = [
        Slice(
            ts=_nanoseconds(event, "ts"),
            dur=_nanoseconds(event, "dur"),
            cat=str(event.get("cat") or ""),
            name=str(event.get("name", "")),
            tid=_number(event.get("tid"), numbers),
            pid=_number(event.get("pid"), numbers),
            args=event.get("args"),
        )
        for event in data["traceEvents"]
        if is_complete(event)
    ]
    slices.sort(key=lambda event: (event.ts, -event.dur))
    return slices


def is_complete(event: Any) -> bool:
    """Tell whether it is an event with a start and a duration, unlike a label, an arrow or an instant."""
    return isinstance(event, dict) and event.get("ph") == "X" and "ts" in event


def _encoded(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _nanoseconds(event: dict[str, Any], field: str) -> int:
    """Convert microseconds without ts * 1000, which loses nanoseconds that a float still holds (from 50 days on)."""
    us = event.get(field, 0)
    try:
        whole = int(us)
        return whole * 1000 + round((us - whole) * 1000)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"event {event.get('name')!r}: {field}={us!r} is not a number of microseconds") from None


def _number(label: Any, numbers: dict[str, int]) -> int:
    """Return a label that is a number and fits 64 bits, also in quotes; else a number per label, kept in `numbers`."""
    if isinstance(label, str) and label.isdecimal():
        label = int(label)
    if isinstance(label, int) and 0 <= label < 2**63:
        return label
    return numbers.setdefault(str(label), -1 - len(numbers))
