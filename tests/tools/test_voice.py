"""Words that the course does not use, in what people read: lessons, README, docs, strings and comments.

They hide the actor ("whoever", "nobody") or are out of use ("anew", "dear"). Stages are left out: they are frozen.
This file is left out, too: it quotes them all.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import nbformat
import pytest

from roseinfer.paths import ROOT

# Each is wrong in every use. None is Python's, and "there is none" and "none of them" are plain English.
WORDS = [
    r"\bwho(m)?ever\b",
    r"\b(no|some|any|every)body\b",
    r"\bmend(s|ed|ing)?\b",
    r"\banew\b",
    r"\bdear(er|est|ly)?\b",
    r"\bheed(s|ed|ing)?\b",
    r"\breckon(s|ed|ing)?\b",
    r"\bthrice\b",
    r"\bapiece\b",
    r"\bone's own\b",
    r"\bone behind the other\b",
    r"\bby and by\b",
    r"\bfor ever\b",
    r"\b(is|are) not to be\b",
    r"\b(?<!there )(is|are) none\b(?! of\b)",
]
WRONG = [
    "Whoever reads it waits.",
    "A stage of one's\nown.",
    "By and by it grows.",
    "A head size that is none is padded.",
]
FORBIDDEN = re.compile("|".join(WORDS))
# Of code alone, where "after" is meant. A slider's picture does lie behind the slider.
LATER = re.compile(r", behind\b(?! a slider)")
IN_CODE = re.compile(f"{FORBIDDEN.pattern}|{LATER.pattern}")
# A docstring begins with a verb or a noun phrase.
NO_BEGINNING = re.compile(r"(Of|Who|Whom|Whose)\b")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLACES = ("*.md", "docs/**/*.md", "teaching/*.md", "course/teach/lesson*/*.md", "course/posts/*/*.md")
PAGES = sorted(path for place in PLACES for path in ROOT.glob(place))
ROOMS = ("roseinfer", "course", "tools", "tests", "notebooks/solutions")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).glob("**/*.py") if path != Path(__file__))


def hits(text: str, forbidden: re.Pattern[str] = FORBIDDEN) -> Iterator[str]:
    """Each forbidden word, and the sentence in which it stands."""
    for sentence in SENTENCE_END.split(text):
        sentence = " ".join(sentence.split())
        lower = re.sub(r"\bNone\b", "", sentence).lower()
        yield from (f"{match[0]!r} in: {sentence}" for match in forbidden.finditer(lower))


def cells(path: Path) -> Iterator[tuple[str, str]]:
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "markdown":
            yield f"{path.name}, cell {number}", cell.source


def strings_and_comments(source: str) -> list[tuple[int, str]]:
    """(line, text) of each: docstrings, messages, texts of exercises."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    strings = [(node.lineno, node.value) for node in nodes if isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return strings + [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def odd_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, beginning) of each docstring that begins with neither a verb nor a noun phrase."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            if NO_BEGINNING.match(text):
                yield node.body[0].lineno, text.splitlines()[0]


def found(texts: Iterator[tuple[str, str]], forbidden: re.Pattern[str] = FORBIDDEN) -> list[str]:
    return [f"{where}: {hit}" for where, text in texts for hit in hits(text, forbidden)]


def read_modules(read: Callable[[str], Iterable[tuple[int, str]]]) -> Iterator[tuple[str, str]]:
    for path in MODULES:
        for line, text in read(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(ROOT)}, line {line}", text


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lessons_use_plain_words(path):
    assert found(cells(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_plain_words(path):
    assert found(iter([(path.name, path.read_text(encoding="utf-8"))])) == []


def test_strings_and_comments_use_plain_words():
    assert found(read_modules(strings_and_comments), IN_CODE) == []


def test_docstrings_begin_with_a_verb_or_a_noun_phrase():
    assert list(read_modules(odd_docstrings)) == []


@pytest.mark.parametrize("sentence", WRONG)
def test_a_forbidden_word_is_found_with_its_sentence(sentence):
    [hit] = hits(f"Before it. {sentence} After it.")
    assert hit.endswith(f"in: {' '.join(sentence.split())}")


@pytest.mark.parametrize(
    "sentence", ["Nothing if it is None.", "There is none.", "This is none of the four.", "It depends on the body."]
)
def test_plain_english_is_left_alone(sentence):
    assert list(hits(sentence)) == []


def test_behind_for_after_and_a_docstring_that_begins_in_the_middle_are_found():
    source = '"""Of all steps."""\n\n\ndef step():\n    """Official step, which is one."""\n'
    assert list(odd_docstrings(source)) == [(1, "Of all steps.")]
    assert len(list(hits("Once more, behind it.", LATER))) == 1
    assert list(hits("A picture, behind a slider; the rule behind it.", LATER)) == []


def test_comments_docstrings_and_other_strings_are_read_and_names_are_not():
    source = '"""Anew."""\n\n\ndef nobody():\n    """Dear."""\n    return f"mends {1}"  # whoever\n'
    assert sorted(strings_and_comments(source)) == [(1, "Anew."), (5, "Dear."), (6, "# whoever"), (6, "mends ")]
