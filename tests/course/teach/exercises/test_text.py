"""Exercises as text: what a section needs, and what is said when a part is missing."""

from __future__ import annotations

import json
import re

import pytest

from course.teach.exercises.text import read_texts, text_of
from roseinfer.paths import ROOT

SECTION = """\
## 99.1 How many
5 minutes, difficulty 1 of 5, importance 4 of 5

```python
n = None

```
Count the
tokens.

- `a`: one
- `b`

Then add.
### Hints
- Read
  it.
- Count - all.
- Add.
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "exercises.md"


def test_a_section_may_break_its_lines_anywhere(path):
    another = SECTION.replace("99.1 How many", "99.2 Which ones")
    path.write_text(f"# Exercises\n\n{SECTION}{another}", encoding="utf-8")
    text = read_texts(path)["99.1"]
    assert (text.title, text.minutes, text.difficulty, text.importance) == ("How many", 5, 1, 4)
    assert text.stub == "n = None\n" and text.facts == "5 minutes, difficulty 1 of 5, importance 4 of 5"
    assert text.task == "Count the tokens.\n\n- `a`: one\n- `b`\n\nThen add."
    assert text.hints == ("Read it.", "Count - all.", "Add.")
    assert read_texts(path)["99.2"].title == "Which ones"


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("5 minutes, difficulty 1", "5 minutes, difficult", "expected a line such as `10 minutes, "),
        ("importance 4", "importance 6", "importance must be 1 to 5, got 6"),
        ("```python", "```", "expected the stub in a block that begins with ```python, got '```"),
        ("### Hints", "## Hints", "expected the task, and after it a line `### Hints`"),
        ("\n- Read", "\nRead", "expected a list of hints, each after `- `, got 'Read"),
        ("- Add.\n", "", "hints must be a tuple of at least 3"),
        ("99.1", "99", 'id must look like "01.1"'),
    ],
)
def test_what_is_missing_is_named_with_file_and_section(path, part, instead, message):
    path.write_text(SECTION.replace(part, instead), encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read_texts(path)
    heading = "## 99 How many" if part == "99.1" else "## 99.1 How many"
    assert str(caught.value).startswith(f"{path}, section `{heading}`: ") and message in str(caught.value)


def test_an_id_comes_once(path):
    path.write_text(SECTION + SECTION, encoding="utf-8")
    with pytest.raises(ValueError, match="99.1 has a section already"):
        read_texts(path)


def test_a_checker_without_a_text_is_refused():
    with pytest.raises(ValueError, match="has no section `## 00.9 Title`; it has 00.1, 00.2, 00.3"):
        text_of("00.9")


def test_the_example_in_the_docs_is_the_exercise_itself():
    _, page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("\n## Adding an exercise\n")
    steps = re.findall(r"^\d\. .*?`([\w/]+\.\w+)`.*?^(`{3,})\w+\n(.*?)\n\2$", page, re.MULTILINE | re.DOTALL)
    assert len(steps) == 5
    for path, _, example in steps:
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".ipynb"):
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        for excerpt in example.split("\n[...]"):
            assert excerpt.strip("\n") in text, f"{path}: {excerpt}"
