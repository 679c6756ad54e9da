"""Served: what the same requests have taken on this machine, in a file that is only appended to.

A line of JSON per stage, under the key of the machine and of the code: another processor, another torch or a change of
the library begins a new set. A lost file costs a minute of measuring, so a line that cannot be read is left out, and a
file that cannot be written is reported once.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import torch

from roseinfer.hardware import device_name
from roseinfer.paths import ROOT
from roseinfer.stage import Stage

PLACE = "ROSEINFER_REQUESTS"
RECORDED = "recorded"
STEADY = 1.3  # the slowest run over the fastest, on a quiet machine
# What decides how fast requests are served, and which these are. Other lessons, benchmarks and commands do not.
ROOMS = ("*.py", "engine/**/*.py", "graphs/*.py", "kernels/*.py", "models/*.py", "overlap/*.py")
OWN = ("served/serve.py", "served/workload.py", "measure/request_loops.py")


@dataclass(frozen=True)
class Served:
    """What a user feels of one stage: the numbers of its median run.

    seconds: from the first arrival until all are answered; fastest, slowest: of all runs. first_token: the median time
    from a request's arrival to its first token; slowest_first_token: the longest one. kv_bytes: of the KV cache, at
    the peak.
    """

    name: str
    seconds: float
    fastest: float
    slowest: float
    first_token: float
    slowest_first_token: float
    tokens_per_second: float
    kv_bytes: float

    @property
    def is_steady(self) -> bool:
        return self.slowest <= STEADY * self.fastest


def place() -> Path | None:
    """Return the file: $ROSEINFER_REQUESTS, or one in the user's cache folder. None if ROSEINFER_REQUESTS=recorded."""
    if chosen := os.environ.get(PLACE):
        return None if chosen == RECORDED else Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roseinfer" / "requests.jsonl"


def key(device: torch.device, stages: Sequence[type[Stage]]) -> str:
    """Name the machine, torch and the code. Numbers under the same key are comparable."""
    machine = f"{device_name(device)}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    code = _digest(tuple(sorted({*_library(), *map(_source, stages)})))
    return f"{machine}, torch {torch.__version__}, code {code}"


def kept(under: str) -> dict[str, Served]:
    """Read what was measured under a key, by the stage's name; the last one counts."""
    path = place()
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
    except (OSError, RuntimeError, UnicodeDecodeError):  # RuntimeError: pathlib finds no home folder
        return {}
    found = [served for line in lines if (served := _parse(line, under))]
    return {served.name: served for served in found}


def keep(under: str, measured: Iterable[Served]) -> None:
    """Append what was measured under a key. What cannot be written is measured again next time."""
    lines = "".join(f"\n{json.dumps({'key': under, **asdict(served)})}" for served in measured)
    path = place()
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except (OSError, RuntimeError) as error:
        said = f"the times of the 24 requests are not kept: {error}. Set {PLACE} to a file in a folder of yours."
        warnings.warn(said, stacklevel=2)


def _parse(line: str, under: str) -> Served | None:
    try:
        entry = json.loads(line)
        if entry.pop("key") != under:
            return None
        numbers = {each.name: float(entry[each.name]) for each in fields(Served) if each.name != "name"}
        return Served(entry["name"], **numbers)
    except (ValueError, KeyError, TypeError, AttributeError):  # a line that was cut off, or is not ours
        return None


def _library() -> list[Path]:
    own = [ROOT / "course" / "teach" / name for name in OWN]
    return [*own, *(path for room in ROOMS for path in (ROOT / "roseinfer").glob(room))]


def _source(stage: type[Stage]) -> Path:
    import inspect

    return Path(inspect.getfile(stage))


@cache
def _digest(paths: tuple[Path, ...]) -> str:
    """Digest the names and contents of files, wherever their folder is."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
