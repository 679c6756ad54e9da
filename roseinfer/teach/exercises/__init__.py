"""Exercises, one module a lesson: "01.2" is in lesson01. Imported when one of its exercises is asked for."""

from __future__ import annotations

import importlib
import pkgutil
import re

EXERCISE_ID = re.compile(r"(?P<lesson>\d\d)\.\d+")


def lessons() -> list[str]:
    """The lessons that have exercises: "00", "01" and so on."""
    return sorted(m.name.removeprefix("lesson") for m in pkgutil.iter_modules(__path__) if m.name.startswith("lesson"))


def load_lesson(exercise_id: str) -> None:
    """Import the lesson that registers exercise_id. Raises ValueError when it is no id, or there is no such lesson."""
    match = EXERCISE_ID.fullmatch(exercise_id) if isinstance(exercise_id, str) else None
    if match is None:
        raise ValueError(f'exercise_id must look like "01.2", got {exercise_id!r}')
    module = f"{__name__}.lesson{match['lesson']}"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(
            f"exercise_id={exercise_id!r}: lesson {match['lesson']} has no exercises; "
            f"lessons with exercises: {', '.join(lessons())}"
        ) from None
