"""The frame of the exercises. "01.1" is in teach/lesson01, which is imported when one of its exercises is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path

from .text import EXERCISE_ID


def lessons() -> list[str]:
    """List the lessons that have exercises: "00", "01" and so on, then the background notebooks "a1", "a2", "a3"."""
    return sorted(path.parent.name[-2:] for path in Path(__file__).parents[1].glob("lesson??/exercises.py"))


def load_lesson(exercise_id: str) -> None:
    """Import the lesson that registers exercise_id. Raises ValueError for a bad id, and if there is no such lesson."""
    match = EXERCISE_ID.fullmatch(exercise_id) if isinstance(exercise_id, str) else None
    if match is None:
        raise ValueError(f'exercise_id must look like "01.1", got {exercise_id!r}')
    if match["lesson"] not in lessons():
        raise ValueError(
            f"exercise_id={exercise_id!r}: lesson {match['lesson']} has no exercises; "
            f"lessons with exercises: {', '.join(lessons())}"
        )
    importlib.import_module(f"course.teach.lesson{match['lesson']}.exercises")
