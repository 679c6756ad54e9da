"""The learner's own record: a line of JSON for each attempt and each guess, in a file that is only appended to.

A line is one write to a file opened for appending. So notebooks that are open at once never lose each other's lines,
and nothing is locked. A file that cannot be written or read is reported once, and the lesson goes on.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

PLACE = "ROSEINFER_PROGRESS"
OFF = "off"

Entry = dict[str, Any]


def place() -> Path | None:
    """Return the record's file: $ROSEINFER_PROGRESS, or in the user's data folder. None if ROSEINFER_PROGRESS=off."""
    chosen = os.environ.get(PLACE)
    if chosen:
        return None if chosen == OFF else Path(chosen).expanduser()
    data_home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser() / "roseinfer" / "progress.jsonl"


def note_attempt(exercise_id: str, passed: bool) -> None:
    _add({"exercise": exercise_id, "passed": passed})


def note_guess(label: str, guess: float, measured: float | None = None) -> None:
    """Add a guess to the record. measured: None until it is revealed."""
    _add({"prediction": label, "guess": guess, "measured": measured})


def entries() -> list[Entry]:
    """Read all attempts and guesses, oldest first. A line that cannot be read, because it was cut off, is left out."""
    try:
        path = place()
        lines = [] if path is None or not path.exists() else path.read_bytes().splitlines()
    except (OSError, RuntimeError) as error:  # RuntimeError: pathlib finds no home folder
        _warn_once(f"your progress cannot be read: {error}")
        return []
    return [entry for line in lines if (entry := _parse(line))]


def clear() -> Path | None:
    """Begin again. Returns the file in which the old record is kept, None when there was none. Raises OSError."""
    path = place()
    if path is None or not path.exists():
        return None
    names = (path.with_name(f"{path.stem}.before-reset-{i}{path.suffix}") for i in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    os.replace(path, aside)
    return aside


def _add(entry: Entry) -> None:
    try:
        path = place()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            # The line break comes first: a line that was cut off, by a full disk say, then spoils no other.
            file.write(b"\n" + json.dumps(entry, ensure_ascii=False).encode())
    except (OSError, RuntimeError) as error:
        _warn_once(f"your progress is not kept: {error}. Set {PLACE} to a file that can be written, or to {OFF}.")


def _parse(line: bytes) -> Entry | None:
    """Parse a line of the record; None if it is not an entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    if entry.keys() == {"exercise", "passed"}:
        sound = isinstance(entry["exercise"], str) and isinstance(entry["passed"], bool)
    elif entry.keys() == {"prediction", "guess", "measured"}:
        measured = entry["measured"]
        sound = isinstance(entry["prediction"], str) and _is_number(entry["guess"])
        sound = sound and (measured is None or _is_number(measured))
    else:
        sound = False
    return entry if sound else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)
