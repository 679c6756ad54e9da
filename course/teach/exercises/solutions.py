"""The course's own answers in notebooks/solutions/<stem of the notebook>.py, which checkers compare answers with.

A line `# --- 01.2` begins the source that takes the place of an exercise's stub. What stands before the first such line
(docstring, imports for linters) belongs to no exercise.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha1
from typing import Any

from roseinfer.paths import ROOT

from .text import text_of

SECTION = re.compile(r"^# --- (\S+)[^\S\n]*\n", re.MULTILINE)


def parse_solutions(text: str) -> dict[str, str]:
    """Parse exercise id -> source. Raises ValueError for an id that comes twice, or an empty section."""
    _, *parts = SECTION.split(text)
    found: dict[str, str] = {}
    for exercise_id, source in zip(parts[::2], parts[1::2], strict=True):
        if exercise_id in found:
            raise ValueError(f"section {exercise_id} comes twice")
        if not source.strip():
            raise ValueError(f"section {exercise_id} is empty")
        found[exercise_id] = source.strip() + "\n"
    return found


@cache
def solutions_of(lesson: str) -> dict[str, str]:
    """Read exercise id -> source of the solutions of a lesson, such as "01" or "a3".

    Raises FileNotFoundError where the course has none: the checks compare answers with them.
    """
    folder = ROOT / "notebooks" / "solutions"
    for path in folder.glob(f"{lesson}_*.py"):
        return parse_solutions(path.read_text(encoding="utf-8"))
    raise FileNotFoundError(
        f"{folder.relative_to(ROOT)}/{lesson}_*.py is missing, and the checks compare answers with it: "
        "git checkout notebooks/solutions"
    )


def solution(exercise_id: str, changes: Mapping[str, str] | None = None, **names: Any) -> Any:
    """Run the solution of an exercise and return what its stub asks for: a function, a class or a value.

    Args:
        exercise_id: of the exercise, such as "05.2".
        changes: maps texts of the solution to what stands in their place, for an answer with a mistake.
        names: global names of the notebook that the solution uses, such as torch=torch.

    A stub that asks for several, as for a step and the stage that takes it, has what is checked last. Raises ValueError
    for a text that the solution does not have.
    """
    source = solutions_of(exercise_id[:2])[exercise_id]
    for text, instead in (changes or {}).items():
        if text not in source:
            raise ValueError(f"the solution of {exercise_id} does not have {text!r}")
        source = source.replace(text, instead)
    place = f"<solution of {exercise_id}{f', {sha1(source.encode()).hexdigest()}' if changes else ''}>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)  # Triton and Numba read it
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, place, "exec"), namespace)
    return namespace[_asked_for(text_of(exercise_id).stub)]


def _asked_for(stub: str) -> str:
    """Return the name that a stub defines last."""
    last = ast.parse(stub).body[-1]
    if isinstance(last, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return last.name
    return ast.unparse(last).partition(" = ")[0]
