"""The text of exercises, as an author edits it: `exercises.md` in the lesson's folder, one section an exercise.

    ## 14.3 Four times of a request

    10 minutes, difficulty 1 of 5, importance 5 of 5

    ```python
    def times_of(arrival, first_scheduled, finish): ...
    ```

    A request comes at `arrival`, ...

    ### Hints

    - Each is a later timestamp minus an earlier one.
    - ...

The block of code is the stub, as the learner's cell has it. What comes before the first section is not read. Lines of
a paragraph are joined, so an author may break them anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

EXERCISE_ID = re.compile(r"(?P<lesson>\d\d|a\d)\.\d+")  # "a1": a background notebook
SCALE = 5  # difficulty and importance go from 1 to this
FEWEST_HINTS = 3

# What a section has after its heading, in this order.
PARTS = {
    f"a line such as `10 minutes, difficulty 1 of {SCALE}, importance 5 of {SCALE}`": (
        rf"(?P<minutes>\d+) minutes, difficulty (?P<difficulty>\d+) of {SCALE}, "
        rf"importance (?P<importance>\d+) of {SCALE}\n"
    ),
    "the stub in a block that begins with ```python": r"```python\n(?P<stub>.+?)\n```\n",
    "the task, and after it a line `### Hints`": r"(?P<task>.+?)\n\s*### Hints\n",
    "a list of hints, each after `- `": r"- (?P<hints>.+)",
}


@dataclass(frozen=True)
class Text:
    """Text of an exercise. stub: the code of the learner's cell as handed out. task and hints: text for view.prose.

    difficulty and importance: 1 to 5. What later lessons and real engines rest on is important.
    """

    id: str
    title: str
    minutes: int
    difficulty: int
    importance: int
    stub: str
    task: str
    hints: tuple[str, ...]

    def __post_init__(self) -> None:
        if not EXERCISE_ID.fullmatch(self.id):
            raise ValueError(f'id must look like "01.1", got {self.id!r}')
        if self.minutes < 1:
            raise ValueError(f"minutes must be at least 1, got {self.minutes!r} for {self.id}")
        for name in ("difficulty", "importance"):
            if (value := getattr(self, name)) not in range(1, SCALE + 1):
                raise ValueError(f"{name} must be 1 to {SCALE}, got {value!r} for {self.id}")
        if isinstance(self.hints, str) or len(self.hints) < FEWEST_HINTS:
            raise ValueError(f"hints must be a tuple of at least {FEWEST_HINTS}, got {self.hints!r} for {self.id}")

    @property
    def facts(self) -> str:
        return (
            f"{self.minutes} minutes, difficulty {self.difficulty} of {SCALE}, importance {self.importance} of {SCALE}"
        )


def text_of(exercise_id: str) -> Text:
    """Read the text of an exercise. Raises ValueError if the lesson's file has no such section, or it is incomplete."""
    path = Path(__file__).parents[1] / f"lesson{exercise_id[:2]}" / "exercises.md"
    texts = read_texts(path)
    if exercise_id not in texts:
        raise ValueError(f"{path} has no section `## {exercise_id} Title`; it has {', '.join(texts) or 'none'}")
    return texts[exercise_id]


@cache
def read_texts(path: Path) -> dict[str, Text]:
    """Map each exercise id to its section. Raises ValueError that names the file, the section and what is missing."""
    _, *sections = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts: dict[str, Text] = {}
    for section in sections:
        title, _, body = section.partition("\n")
        try:
            text = _parse(title, body)
            if text.id in texts:
                raise ValueError(f"{text.id} has a section already")
        except ValueError as error:
            raise ValueError(f"{path}, section `## {title}`: {error}") from None
        texts[text.id] = text
    return texts


def _parse(heading: str, body: str) -> Text:
    exercise_id, _, title = heading.partition(" ")
    found: dict[str, str] = {}
    for what, pattern in PARTS.items():
        match = re.match(rf"\s*{pattern}", body, re.DOTALL)
        if match is None:
            raise ValueError(f"expected {what}, got {body.strip()[:40]!r}")
        found |= match.groupdict()
        body = body[match.end() :]
    numbers = {name: int(found[name]) for name in ("minutes", "difficulty", "importance")}
    hints = tuple(" ".join(hint.split()) for hint in re.split(r"\n- ", found["hints"]))
    return Text(exercise_id, title.strip(), **numbers, stub=found["stub"], task=_joined(found["task"]), hints=hints)


def _joined(text: str) -> str:
    """Join the lines of each paragraph. An item of a list begins its own line."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(re.sub(r"\s*\n(?!- )\s*", " ", paragraph) for paragraph in paragraphs)
