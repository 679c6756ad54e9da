"""Words that the course does not use, in what people read: lessons, README, docs, strings and comments.

They hide the actor ("whoever", "nobody") or are out of use ("anew", "dear"). Stages are left out: they are frozen.
This file is left out, too: it quotes them all.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from roseinfer.paths import ROOT

# Each is wrong in every use. None is Python's, and "there is none" and "none of them" are plain English.
WORDS = [
    r"who(m)?ever\b",
    r"(no|some|any|every)body\b",
    r"mend(s|ed|ing)?\b",
    r"anew\b",
    r"dear(er|est|ly)?\b",
    r"heed(s|ed|ing)?\b",
    r"reckon(s|ed|ing)?\b",
    r"thrice\b",
    r"apiece\b",
    r"one's own\b",
    r"one behind the other\b",
    r"by and by\b",
    r"for ever\b",
    r"(is|are) not to be\b",
    r"(?<!there )(is|are) none\b(?! of\b)",
]
WRONG = [
    "Whoever reads it waits.",
    "A stage of one's\nown.",
    "By and by it grows.",
    "A head size that is none is padded.",
]
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(WORDS)})")
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


def nodes_of(source: str) -> Iterator[ast.AST]:
    """All nodes, in half the time of ast.walk."""
    todo: list[Any] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        elif isinstance(node, ast.AST):
            yield node
            todo += vars(node).values()


def comments(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each. Python's tokenizer is slow, so it looks at no source without a forbidden word."""
    if IN_CODE.search(" ".join(source.lower().split())):
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        yield from ((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)


def faults(source: str) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of docstrings, messages, texts of exercises and comments."""
    texts = list(comments(source))
    for node in nodes_of(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append((node.lineno, node.value))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            if NO_BEGINNING.match(docstring):
                yield node.body[0].lineno, f"begins with neither a verb nor a noun: {docstring.splitlines()[0]}"
    yield from ((line, hit) for line, text in texts for hit in hits(text, IN_CODE))


def found(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [f"{where}: {hit}" for where, text in texts for hit in hits(text)]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lessons_use_plain_words(path):
    assert found(cells(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_plain_words(path):
    assert found(iter([(path.name, path.read_text(encoding="utf-8"))])) == []


def test_strings_comments_and_docstrings_use_plain_words():
    of_modules = ((path, fault) for path in MODULES for fault in faults(path.read_text(encoding="utf-8")))
    assert [f"{path.relative_to(ROOT)}, line {line}: {what}" for path, (line, what) in of_modules] == []


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
    assert [(line, what.partition(": ")[2]) for line, what in faults(source)] == [(1, "Of all steps.")]
    assert len(list(hits("Once more, behind it.", LATER))) == 1
    assert list(hits("A picture, behind a slider; the rule behind it.", LATER)) == []


def test_comments_docstrings_and_other_strings_are_read_and_names_are_not():
    source = '"""Anew."""\n\n\ndef nobody():\n    """Dear."""\n    return f"mends {1}"  # whoever\n'
    wrong = [(1, "'anew' in: Anew."), (5, "'dear' in: Dear."), (6, "'mends' in: mends"), (6, "'whoever' in: # whoever")]
    assert sorted(faults(source)) == wrong
