"""Speeds: what the climb has measured on this machine, in a file that is only appended to.

A line of JSON per contender, under the key of the machine and of the code: another processor, another torch or a
change of the library starts a new climb. A lost file costs a minute of measuring, so a line that cannot be read is
left out, and a file that cannot be written is reported once.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from roseinfer.hardware import device_name
from roseinfer.paths import ROOT
from roseinfer.stage import Stage

PLACE = "ROSEINFER_CLIMB"
RECORDED = "recorded"
STEADY = 1.3  # the fastest run over the slowest, on a quiet machine
# What decides how fast a step is. Lessons, benchmarks and commands do not.
ROOMS = ("*.py", "engine/*.py", "graphs/*.py", "kernels/*.py", "models/*.py", "overlap/*.py", "sampling/*.py")


@dataclass(frozen=True)
class Speed:
    """Tokens per second of decoding: the median run, and the slowest and the fastest."""

    name: str
    tokens_per_second: float
    slowest: float
    fastest: float

    @property
    def is_steady(self) -> bool:
        return self.fastest <= STEADY * self.slowest


def place() -> Path | None:
    """Return the file of speeds: $ROSEINFER_CLIMB, or in the user's cache folder. None if ROSEINFER_CLIMB=recorded."""
    if chosen := os.environ.get(PLACE):
        return None if chosen == RECORDED else Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roseinfer" / "climb.jsonl"


def key(device: torch.device, stages: Sequence[type[Stage]]) -> str:
    """Name the machine, torch and the code. Speeds under the same key are comparable."""
    machine = f"{device_name(device)}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    code = _digest(tuple(sorted({*_library(), *map(_source, stages)})))
    return f"{machine}, torch {torch.__version__}, code {code}"


def kept(under: str) -> dict[str, Speed]:
    """Read the speeds that were measured under a key, by name; the last one counts."""
    path = place()
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path else []
    except (OSError, RuntimeError, UnicodeDecodeError):  # RuntimeError: pathlib finds no home folder
        return {}
    speeds = [speed for line in lines if (speed := _parse(line, under))]
    return {speed.name: speed for speed in speeds}


def keep(under: str, speeds: Iterable[Speed]) -> None:
    """Append speeds under a key. What cannot be written is measured again next time."""
    lines = "".join(f"\n{json.dumps({'key': under, **asdict(speed)})}" for speed in speeds)
    path = place()
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"speeds of the climb are not kept: {error}. Set {PLACE} to a file in a folder of yours.", stacklevel=2
        )


def _parse(line: str, under: str) -> Speed | None:
    try:
        entry = json.loads(line)
        if entry.pop("key") != under:
            return None
        numbers = {name: float(entry[name]) for name in ("tokens_per_second", "slowest", "fastest")}
        return Speed(entry["name"], **numbers)
    except (ValueError, KeyError, TypeError, AttributeError):  # a line that was cut off, or is not ours
        return None


def _library() -> list[Path]:
    return [path for room in ROOMS for path in (ROOT / "roseinfer").glob(room)]


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
