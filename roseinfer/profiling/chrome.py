"""Chrome trace files, as torch.profiler writes them: reading, writing, and the complete events in them.

Format: "Trace Event Format" (Google, 2016). Times in the file are microseconds; here they are nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """One complete event (ph == "X"). ts and dur in ns; pid and tid None where the file has a label there."""

    ts: int
    dur: int
    cat: str
    name: str
    tid: int | None
    pid: int | None
    args: dict[str, Any] | None

    @property
    def end(self) -> int:
        return self.ts + self.dur


def read_chrome_trace(path: str | Path) -> dict[str, Any]:
    """The parsed trace, gzipped or not. FileNotFoundError if missing, ValueError if not a Chrome trace."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such trace file")
    raw = path.read_bytes()
    try:
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        data = json.loads(text)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"path={str(path)!r}: damaged gzip file ({error})") from error
    except ValueError as error:
        raise ValueError(f"path={str(path)!r}: not JSON ({error})") from error
    return as_chrome_trace(data, where=f"path={str(path)!r}")


def as_chrome_trace(data: Any, where: str) -> dict[str, Any]:
    """Check parsed JSON and bring the format's second form, a bare list of events, to the first."""
    if isinstance(data, list):
        data = {"traceEvents": data}
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise ValueError(f"{where}: not a Chrome trace; expected an object with a list 'traceEvents'")
    if not any(map(_is_complete, data["traceEvents"])):
        raise ValueError(f"{where}: the trace has no complete events (ph 'X'); was anything profiled?")
    return data


def write_chrome_trace(data: dict[str, Any], path: str | Path) -> None:
    """Write to *.json, or gzipped to *.json.gz. ValueError for another suffix."""
    path = Path(path)
    if not path.name.endswith((".json", ".json.gz")):
        raise ValueError(f"path={str(path)!r}: a trace is saved as *.json or *.json.gz")
    path.write_bytes(gzipped(data) if path.name.endswith(".gz") else _encoded(data))


def gzipped(data: dict[str, Any]) -> bytes:
    """What *.json.gz holds; the same trace gives the same bytes."""
    return gzip.compress(_encoded(data), mtime=0)


def complete_slices(data: dict[str, Any]) -> list[Slice]:
    """All complete events in time order, an enclosing event before those it encloses."""
    slices = [
        Slice(
            ts=round(event["ts"] * 1000),
            dur=round(event.get("dur", 0) * 1000),
            cat=event.get("cat") or "",
            name=str(event.get("name", "")),
            tid=_integer(event.get("tid")),
            pid=_integer(event.get("pid")),
            args=event.get("args"),
        )
        for event in data["traceEvents"]
        if _is_complete(event)
    ]
    slices.sort(key=lambda event: (event.ts, -event.dur))
    return slices


def _encoded(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _is_complete(event: Any) -> bool:
    return isinstance(event, dict) and event.get("ph") == "X" and "ts" in event


def _integer(label: Any) -> int | None:
    return label if isinstance(label, int) else None
