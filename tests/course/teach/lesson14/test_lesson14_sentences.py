"""Lesson 14: the sentences on gaps follow from the runs, whichever is faster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course.teach.lesson14 import gap_sentences
from course.teach.lesson14.gap_sentences import say_gaps


def run(name, gap, first):
    return SimpleNamespace(name=name, metrics=lambda: {"itl": {"max": gap}, "ttft": {"max": first}})


@pytest.fixture(autouse=True)
def any_run(monkeypatch):
    monkeypatch.setattr(gap_sentences, "require_runs", lambda runs: None)


def told(before, after):
    said = say_gaps(run("no chunks", *before), run("budget 64", *after))
    assert repr(said) == "computed from this run: what the budget does to gaps and to first tokens"
    return said.sentences


def test_a_shorter_gap_that_the_long_prompt_pays_for():
    assert told((0.2, 0.1), (0.05, 0.3)) == (
        "**Longest gap between two tokens**, no chunks and budget 64: 200 ms and 50 ms, 4.0 times shorter.",
        "**Longest time to a first token**: 100 ms and 300 ms, 3.0 times longer. "
        "The long prompt pays: it comes in chunks.",
    )


def test_no_gain_is_told_as_none():
    gaps, firsts = told((0.1, 0.3), (0.2, 0.29))
    assert gaps.endswith("100 ms and 200 ms, 2.0 times longer.")
    assert firsts.endswith("300 ms and 290 ms, about as long.")
