"""python -m tools.timetables: write the timetables of teaching/README.md from teaching/timetables.toml.

A table stands between `<!-- timetable: NAME -->` and `<!-- end -->`. Clock times start at 0:00 and include the breaks.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.pages.headings import headings
from course.pages.links import prose
from course.teach.exercises.exercise import find
from roseinfer.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TIMETABLES = ROOT / "teaching" / "timetables.toml"
README = ROOT / "teaching" / "README.md"
PLACE = re.compile(r"(<!-- timetable: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A lesson ("05", and what of it), or something else (what, minutes). Sections are headings of level 2."""

    lesson: str = ""
    opening: int = 0
    sections: dict[str, int] = field(default_factory=dict)
    exercises: tuple[str, ...] = ()
    what: str = ""
    minutes: int = 0

    def __post_init__(self) -> None:
        if bool(self.lesson) == bool(self.what):
            raise ValueError(f"a part is a lesson or a what, got lesson={self.lesson!r}, what={self.what!r}")
        if self.what and (self.minutes < 1 or self.opening or self.sections or self.exercises):
            raise ValueError(f"{self.what!r} must have minutes, at least 1, and nothing else")
        if self.lesson and self.minutes:
            raise ValueError(f"lesson {self.lesson!r} takes the minutes of its sections, not minutes={self.minutes}")

    @property
    def total(self) -> int:
        """Minutes of this part."""
        exercises = sum(find(exercise).minutes for exercise in self.exercises)
        return self.minutes + self.opening + sum(self.sections.values()) + exercises


@dataclass(frozen=True)
class Timetable:
    """A day's parts. minutes: what the day is said to take."""

    title: str
    minutes: int
    parts: tuple[Part, ...]


def load(path: Path = TIMETABLES) -> dict[str, Timetable]:
    """Load name -> timetable. Raises ValueError or TypeError for a part with an unknown key, or of two kinds."""
    return {name: _timetable(**table) for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def _timetable(title: str, minutes: int, part: list[dict[str, Any]]) -> Timetable:
    parts = ({**keys, "exercises": tuple(keys.get("exercises", ()))} for keys in part)
    return Timetable(title, minutes, tuple(Part(**keys) for keys in parts))


def notebook(lesson: str) -> Path:
    """Find a lesson's notebook. Raises ValueError if there is no such lesson."""
    found = sorted((ROOT / "notebooks").glob(f"{lesson}_*.ipynb"))
    if len(found) != 1:
        raise ValueError(f"lesson must be the number of a notebook, such as 05, got {lesson!r}")
    return found[0]


def title_and_sections(lesson: str) -> tuple[str, list[str]]:
    """Return the text of a lesson's first heading, and the texts of its headings of level 2."""
    (_, title), *below = headings(prose(notebook(lesson)))
    return title, [text for level, text in below if level == 2]


def render(timetable: Timetable) -> str:
    """Write a timetable as a Markdown table, one row per part."""
    rows = ["| from | minutes | | section (minutes) |", "|---:|---:|---|---|"]
    clock = 0
    for part in timetable.parts:
        rows.append(f"| {clock // 60}:{clock % 60:02} | {part.total} | {_name(part)} | {_details(part)} |")
        clock += part.total
    rows.append(f"| {clock // 60}:{clock % 60:02} | **{clock}** | end | |")
    return "\n".join(rows)


def _name(part: Part) -> str:
    if part.what:
        return part.what
    return f"[{title_and_sections(part.lesson)[0]}](../notebooks/{notebook(part.lesson).name})"


def _details(part: Part) -> str:
    pieces = [("opening", part.opening)] if part.opening else []
    pieces += part.sections.items()
    pieces += [(f"**{exercise}** {find(exercise).title}", find(exercise).minutes) for exercise in part.exercises]
    return ", ".join(f"{name} ({minutes})" for name, minutes in pieces)


def fill(text: str, timetables: dict[str, Timetable]) -> str:
    """Put the timetables in their places in the text. Raises ValueError if one has no place, or a place has none."""
    places = [name for _, name, _ in PLACE.findall(text)]
    if sorted(places) != sorted(timetables):
        raise ValueError(f"text must have a place for each of {sorted(timetables)}, it has {sorted(places)}")
    return PLACE.sub(lambda match: f"{match[1]}{render(timetables[match[2]])}\n{match[3]}", text)


if __name__ == "__main__":
    README.write_text(fill(README.read_text(encoding="utf-8"), load()), encoding="utf-8")
