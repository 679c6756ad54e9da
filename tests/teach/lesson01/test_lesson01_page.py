"""Lesson 01: what its page compares is alike, and what it calls the same is."""

from __future__ import annotations

import ast

import nbformat
import pytest

from roseinfer import teach
from roseinfer.generate import begin, decode_step
from roseinfer.paths import ROOT
from roseinfer.sequence import SamplingParams
from roseinfer.teach.lesson01.exercises import naive_gather_ops
from tools.contradictions import table, texts


@pytest.fixture(scope="module")
def cells():
    nb = nbformat.read(ROOT / "notebooks" / "01_naive_cat.ipynb", as_version=4)
    return [cell for cell in nb.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def recomputing(cells):
    """The lesson's own contenders without a cache, by name."""
    names: dict = {}
    for cell in cells:
        wanted = [node for node in ast.parse(cell.source).body if isinstance(node, ast.ImportFrom | ast.Import)]
        wanted += [node for node in ast.parse(cell.source).body if getattr(node, "name", "").startswith("Recompute")]
        exec(compile(ast.Module(wanted, []), "01_naive_cat", "exec"), names)
    return names


@pytest.mark.parametrize("name", ["Recompute", "RecomputeBatch"])
def test_recomputation_has_the_oracles_tokens_on_mixed_lengths(recomputing, small, name):
    proved = repr(teach.prove(recomputing[name], small, max_tokens=4))
    assert proved.count("equal") == 12 and "differs" not in proved


@pytest.mark.parametrize(("name", "forwards"), [("Recompute", 3), ("RecomputeBatch", 1), ("NaiveCat", 1)])
def test_the_contenders_differ_in_batching_alone_or_in_the_cache_alone(recomputing, small, name, forwards):
    """One forward for each text or one for all, with every token or with the new ones."""
    rows = []
    stage = recomputing[name](small, num_blocks=8)
    seqs = begin(stage, [[5] * 9] * 3, SamplingParams(max_tokens=4, ignore_eos=True))
    listening = small.h[0].register_forward_hook(lambda block, args, out: rows.append(args[0].size(0)))
    try:
        decode_step(stage, seqs)
    finally:
        listening.remove()
    assert len(rows) == forwards and sum(rows) == (3 if name == "NaiveCat" else 3 * 10)


def test_the_gather_on_the_page_makes_what_the_exercise_counts(cells):
    [shown] = [table(texts(cell)[0])[1] for cell in cells if "build_batched_past' AND" in cell.source]
    counted = {row["name"].removeprefix("aten::"): int(row["n"]) for row in shown}
    assert counted.pop("select")
    assert counted == naive_gather_ops(4, [40] * 8)
