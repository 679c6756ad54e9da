"""Something that happens before a line of the engine's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import roseinfer.engine
import roseinfer.llm

ROOMS = roseinfer.engine, roseinfer.llm
FILES = {str(path) for room in ROOMS for path in Path(room.__file__).parent.rglob("*.py")}


class AtLine:
    """Does something before line number `number` that the engine runs inside, in this thread. num_lines: so far."""

    def __init__(self, number: int | None, action: Callable[[], None], files: set[str] = FILES) -> None:
        self.number, self.action, self.files, self.num_lines, self.where = number, action, files, 0, ""

    def __enter__(self) -> AtLine:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def trace(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines - 1 == self.number:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self.action()
        return self.trace
