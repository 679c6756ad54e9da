"""Messages that count: one of a thing has the singular, and its verb agrees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from roseinfer.arguments import counted
from roseinfer.paths import ROOT

# After a number: perhaps an adjective, a plural, and a plural's verb.
PLURAL = re.compile(
    r" (?:(?!the )[a-z-]+ )?[a-z]{3,}s (?:were|are|have|had|do|did|wait|run|fit|need|lack|make|fail|failed)\b"
)
MANY = {  # the number is never 1 there
    "course/cli/contest.py": "more than one file",
    "course/contract/promises/choices.py": "a list of lengths",
    "roseinfer/parallel/ranks.py": "at least 2 ranks",
    "roseinfer/sampling_params.py": "n above 1",
    "course/teach/lesson02/exercises.py": "bytes of tensors",
    "course/teach/lesson03/exercises.py": "sequences of the post",
    "course/teach/lesson06/exercises.py": "rows of 3 sequences",
    "course/teach/lesson12/exercises.py": "values of a group",
    "course/teach/lesson14/board.py": "an argument and its value",
    "course/teach/views/engine_walk.py": "tokens of the walk",
}


@pytest.mark.parametrize(
    ("number", "verb", "text"),
    [
        (1, "", "1 block"),
        (0, "", "0 blocks"),
        (2048, "", "2,048 blocks"),
        (1, "was/were", "1 block was"),
        (2, "was/were", "2 blocks were"),
    ],
)
def test_counted(number, verb, text):
    assert counted(number, "block", verb) == text


def plurals(path: Path) -> list[str]:
    """The parts of f-strings where a number, but not one of "3 of 4", is followed by a plural and its verb."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            before = ""
            for value, after in zip(node.values, [*node.values[1:], None], strict=True):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    if PLURAL.match(str(after.value)) and not before.endswith(" of "):
                        found.append(f"{path.name}:{node.lineno}: {ast.unparse(value.value)}{after.value}")
                before = str(value.value) if isinstance(value, ast.Constant) else ""
    return found


@pytest.mark.slow
def test_no_message_says_1_blocks_were():
    paths = [path for room in ("roseinfer", "course") for path in (ROOT / room).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): plurals(path) for path in paths}
    assert {name: lines for name, lines in found.items() if lines and name not in MANY} == {}
    assert not [name for name in MANY if not found[name]], "MANY names files that have none"
