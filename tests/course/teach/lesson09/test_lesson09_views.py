"""Lesson 09: rows that are counted, tasks that are dealt out, and sources that are shown."""

from __future__ import annotations

import ast
import inspect
import textwrap

import nbformat
import numba
import numpy as np
import pytest
import torch
from numba import njit, prange

from course.teach import cached_bytes, count_rows, head_major, paged_case, read_rates, show_source, walk_tasks
from course.teach.lesson09.task_picture import in_pieces, numbered, shares, shares_by_tokens
from roseinfer.kernels.paged_numba import write_then_attend
from roseinfer.paths import ROOT
from stages.s09_numba_paged import compiled, paged_attention_numba, paged_decode_loop


@pytest.mark.parametrize("shape", [{}, {"group": 4}, {"num_kv_heads": 3, "head_dim": 80, "block_size": 5}], ids=str)
def test_the_stages_loop_takes_each_cached_row_once_and_nothing_else(shape):
    case = paged_case([40, 0, 3, 16], **shape)
    for times in count_rows(paged_decode_loop, case):
        assert torch.equal(times, case.cached[..., 0].long())


def test_rows_are_counted_as_often_as_they_are_taken_whole_or_by_element():
    def loop(out, q, k, v, k_cache, v_cache, table, lens, scale):
        for _ in range(3):
            k_cache[1, 2, 0]
        for d in range(v_cache.shape[3]):
            v_cache[1, 3, 1, d]

    k_times, v_times = count_rows(loop, paged_case([20]))
    assert (k_times[1, 2, 0], k_times.sum()) == (3, 3) and (v_times[1, 3, 1], v_times.sum()) == (1, 1)


@pytest.mark.slow
def test_a_compiled_loop_is_counted_by_its_python():
    case = paged_case([3])
    k_times, _ = count_rows(compiled(torch.float32), case)
    assert torch.equal(k_times, case.cached[..., 0].long())


@pytest.mark.slow
def test_tasks_are_dealt_out_as_numba_does_it():
    @njit(parallel=True)
    def who(n):
        threads = np.empty(n, np.int64)
        for task in prange(n):
            threads[task] = numba.get_thread_id()
        return threads

    before = numba.get_num_threads()
    threads = min(2, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    try:
        for lengths, heads in (([1, 2, 3], 1), ([5] * 4, 3), ([7], 1)):
            runs = [run for run in shares(numbered(lengths, heads, "head by head"), threads) if run]
            dealt = who(len(lengths) * heads).tolist()
            assert [dealt.count(thread) for thread in dict.fromkeys(dealt)] == [len(run) for run in runs]
    finally:
        numba.set_num_threads(before)


def test_a_picture_of_tasks_says_who_waits():
    shown = walk_tasks([30, 10], num_kv_heads=2, threads=[1, 2, 8])
    assert repr(shown).splitlines()[:5] == [
        "2 sequences with [30, 10] cached tokens, 2 KV heads",
        "1 thread, numbered sequence by sequence: the busiest walks over 80 tokens, 1.00 times an even share",
        "1 thread, numbered head by head: the busiest walks over 80 tokens, 1.00 times an even share",
        "2 threads, numbered sequence by sequence: the busiest walks over 60 tokens, 1.50 times an even share",
        "2 threads, numbered head by head: the busiest walks over 40 tokens, 1.00 times an even share",
    ]
    assert [sum(len(panel.cells) for panel in frame.panels) for frame in shown.frames] == [2 * 4] * 3


def test_a_split_keeps_all_tokens_and_makes_no_long_task():
    tasks = numbered([30, 0, 10], 2, "head by head")
    pieces = in_pieces(tasks, 8)
    assert max(tokens for *_, tokens in pieces) == 8
    for seq, head, tokens in tasks:
        assert sum(n for *of, n in pieces if of == [seq, head]) == tokens
    runs = shares_by_tokens(pieces, 3)
    assert [task for run in runs for task in run] == pieces
    shown = repr(walk_tasks([30, 10], num_kv_heads=1, threads=[4], split=8)).splitlines()
    assert shown[-1] == (
        "4 threads, numbered head by head, split after 8 tokens, shared out by tokens: the busiest walks over 14 "
        "tokens, 1.40 times an even share"
    )


def test_a_head_major_batch_gives_the_same_attention_and_has_the_same_bytes():
    case = paged_case([20, 3], num_kv_heads=2, group=3, head_dim=8)
    laid_out = head_major(case)
    assert laid_out.k_cache.size(2) == 1 and laid_out.k_cache.is_contiguous()
    assert torch.equal(paged_attention_numba(*laid_out).flatten(), paged_attention_numba(*case).flatten())
    assert cached_bytes(case) == cached_bytes(laid_out) == 2 * 23 * 2 * 8 * 4


def test_a_rate_is_bytes_of_the_cache_over_time():
    seen = []
    rates = read_rates(lambda *case: seen.append(case), {"a": paged_case([5]), "b": paged_case([9])}, repeats=1)
    assert list(rates) == ["a", "b"] and min(rates.values()) > 0 and len(seen) == 2 * (1 + 2)


def test_a_function_of_the_library_is_shown_and_its_lines_are_not_recorded():
    shown = show_source(write_then_attend, paged_decode_loop)
    assert repr(shown) == (
        "roseinfer/kernels/paged_numba.py: write_then_attend\nstages/s09_numba_paged.py: paged_decode_loop"
    )
    assert "slot_mapping" in shown.to_html() and "shrink" in shown.to_html()
    with pytest.raises(ValueError, match="functions must be functions, got 3"):
        show_source(3)


def test_every_statement_of_the_walk_is_paired():
    """The notebook shows the walk beside the kernel's: no statement may be missing there."""
    path = ROOT / "notebooks" / "09_numba_paged.ipynb"
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.source.startswith("teach.side_by_side")]
    shown = "\n".join(output["data"]["text/plain"] for cell in cells for output in cell.outputs)
    source = textwrap.dedent(inspect.getsource(paged_decode_loop))
    (walk,) = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.For) and "num_cached" in ast.unparse(n.iter)]
    simple = [n for n in ast.walk(walk) if isinstance(n, (ast.Assign, ast.AugAssign))]
    missing = {ast.get_source_segment(source, n) for n in simple} - {"score = np.float32(0)", "top[g] = new_top"}
    assert len(simple) > 10 and [line for line in missing if line not in shown] == []
