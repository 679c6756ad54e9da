"""An answer that is the library's own passes its checker and does not count; one that uses the library does."""

from __future__ import annotations

from functools import partial

import pytest
from numba import njit

from course.teach.exercises.exercise import check, exercise
from course.teach.exercises.librarys_own import librarys_own
from course.teach.exercises.text import Text
from roseinfer.kernels.paged_reference import paged_attention_reference
from roseinfer.sampling import exponential_race, sample
from stages import BlockTable, NaiveCat, NumbaPaged, Overlap, PrefixCache
from stages.s09_numba_paged import paged_decode_loop


def uses(probs, noise):
    return exponential_race(probs, 2 * noise)


def writes(probs, noise):
    return (probs / noise).argmax(-1)


class Takes(PrefixCache):
    step = Overlap.step


class TakesAndWrites(PrefixCache):
    step = Overlap.step

    def helper(self): ...


class TakesAttention(BlockTable):
    attention = staticmethod(paged_attention_reference)


class Unchanged(NumbaPaged): ...


class Writes(NaiveCat):
    def append(self, seqs, step):
        super().append(seqs, step)


class WritesAbove(Writes): ...


class WithACompiledLoop(BlockTable):
    attention = staticmethod(njit(writes))


class Alone:
    def append(self, k, v): ...


@pytest.mark.parametrize(
    "answer",
    [
        sample,
        NaiveCat,
        partial(sample, seqs=[]),
        njit(getattr(paged_decode_loop, "py_func", paged_decode_loop)),
        paged_decode_loop,
        NumbaPaged.attention,
        Takes,
        TakesAttention,
        Unchanged,
    ],
)
def test_what_is_the_librarys_own_is_named(answer):
    assert librarys_own(answer).split(".")[0] in ("course", "roseinfer", "stages")


@pytest.mark.parametrize(
    "answer",
    [
        uses,
        writes,
        njit(writes),
        partial(writes, 1),
        max,
        7,
        [4, 5],
        None,
        TakesAndWrites,
        Writes,
        WritesAbove,
        WithACompiledLoop,
        Alone,
    ],
)
def test_what_a_learner_has_written_is_theirs(answer):
    assert librarys_own(answer) == ""


def test_the_librarys_own_answer_is_not_counted(monkeypatch):
    module = __import__("importlib").import_module("course.teach.exercises.exercise")
    monkeypatch.setattr(module, "_registered", {})
    exercise(Text("00.9", "Any", 1, 1, 1, "def race(probs, noise): ...", "", ("a", "b", "c")))(lambda answer: None)
    assert check("00.9", writes)
    verdict = check("00.9", exponential_race)
    assert verdict.outcome == "not yet" and "the library's own: `roseinfer.sampling.exponential_race`" in str(verdict)
