"""Lesson 01: what its page compares is alike, and what it calls the same is."""

from __future__ import annotations

import nbformat
import pytest
from notebook_text import table, texts

from course import teach
from course.teach.exercises.solutions import solution
from roseinfer.generate import decode_step
from roseinfer.paths import ROOT
from stages import NaiveCat


@pytest.fixture(scope="module")
def cells():
    nb = nbformat.read(ROOT / "notebooks" / "01_naive_cat.ipynb", as_version=4)
    return [cell for cell in nb.cells if cell.cell_type == "code"]


CONTENDERS = [teach.Recompute, teach.RecomputeBatch]


@pytest.mark.parametrize("contender", CONTENDERS)
def test_recomputation_has_the_oracles_tokens_on_mixed_lengths(contender, small):
    proved = repr(teach.prove(contender, small, max_tokens=4))
    assert proved.count("equal") == 12 and "differs" not in proved


@pytest.mark.parametrize(("contender", "forwards"), [*zip(CONTENDERS, (3, 1), strict=True), (NaiveCat, 1)])
def test_the_contenders_differ_in_batching_alone_or_in_the_cache_alone(contender, forwards, small):
    """One forward for each text or one for all, with every token or with the new ones."""
    rows = []
    stage, seqs = teach.ready_batch(contender, small, [9] * 3)
    listening = small.h[0].register_forward_hook(lambda block, args, out: rows.append(args[0].size(0)))
    try:
        decode_step(stage, seqs)
    finally:
        listening.remove()
    assert len(rows) == forwards and sum(rows) == (3 if contender is NaiveCat else 3 * 10)


def test_the_gather_on_the_page_makes_what_the_exercise_counts(cells):
    [shown] = [table(texts(cell)[0])[1] for cell in cells if "build_batched_past' AND" in cell.source]
    counted = {row["name"].removeprefix("aten::"): int(row["n"]) for row in shown}
    assert counted.pop("select")
    assert counted == solution("01.2")(4, [40] * 8)
