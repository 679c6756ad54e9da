"""Lesson 09: wrong shares, wrong bits and wrong loops are told what is wrong, and right ones pass."""

from __future__ import annotations

import math
import struct

import numba
import numpy as np
import pytest
import torch
from numba import njit, prange
from wrong_answers import assert_refused, edited, right_answers, wrong_answers

from course.teach import check
from course.teach.exercises.solutions import parse_solutions
from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow


SOLUTIONS = parse_solutions((ROOT / "notebooks/solutions/09_numba_paged.py").read_text(encoding="utf-8"))


# 09.1


def tokens_of_threads(lengths, heads, threads):
    return [int(run.sum()) for run in np.array_split(lengths * heads, threads)]


test_a_wrong_share = wrong_answers(
    "09.1",
    {"the tokens of each": (tokens_of_threads, "expected a number, got list")},
)


def busiest_in_place(lengths, heads, threads):
    most, task = 0, 0
    for thread in range(threads):
        tokens = 0
        for _ in range(len(lengths) * heads // threads + (thread < len(lengths) * heads % threads)):
            tokens += lengths[task % len(lengths)]
            task += 1
        most = max(most, tokens)
    return most


def busiest_by_prefix_sums(lengths, heads, threads):
    upto = np.concatenate([[0], np.cumsum(lengths * heads)])
    starts = [(len(upto) - 1) // threads * t + min(t, (len(upto) - 1) % threads) for t in range(threads + 1)]
    return np.diff(upto[starts]).max()


def busiest_in_torch(lengths, heads, threads):
    return max(part.sum() for part in torch.tensor(lengths * heads).tensor_split(threads))


test_a_right_share = right_answers(
    "09.1",
    {
        "array_split": lambda *case: max(tokens_of_threads(*case)),
        "one task after the other": busiest_in_place,
        "prefix sums": busiest_by_prefix_sums,
        "a tensor": busiest_in_torch,
    },
)


# 09.3


def rounded(x, add):
    bits = x.view(np.uint32)
    made = ((bits + add(bits)).astype(np.uint32) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), made)


def half_even(bits):
    return 0x7FFF + ((bits >> 16) & 1)


def in_place(x):
    bits = x.view(np.uint32)
    bits += np.uint32(0x8000)
    return (bits >> 16).astype(np.uint16)


test_wrong_bits = wrong_answers(
    "09.3",
    {
        "int32": (lambda x: rounded(x, half_even).astype(np.int32), "dtype int32, expected uint16: the bits, not the"),
        "numbers": (lambda x: torch.from_numpy(x).bfloat16().float().numpy(), "dtype float32, expected uint16"),
        "a tensor": (lambda x: torch.from_numpy(x).bfloat16(), "expected a NumPy array, got Tensor"),
        "flat": (lambda x: rounded(x, half_even).ravel(), "shape (4,), expected (2, 1, 2)"),
        "the lower half": (lambda x: x.view(np.uint32).astype(np.uint16), "first at (0,): got 0001, expected 0000"),
        "no sign": (lambda x: rounded(np.abs(x), half_even), "got 0000, expected 8000"),
        "in place": (in_place, "x was handed in, and you have changed it"),
        "nothing": (lambda x: None, "got None: is a `return` missing?"),
    },
)


def one_by_one(x):
    def bits_of(value):
        if math.isnan(value):
            return 0x7FC1
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        upper, lower = bits >> 16, bits & 0xFFFF
        return upper + (lower > 0x8000 or (lower == 0x8000 and upper & 1))

    return np.array([bits_of(float(value)) for value in x.flat], dtype=np.uint16).reshape(x.shape)


@njit
def compiled_one_by_one(x):
    out = np.empty(x.size, np.uint16)
    for i, value in enumerate(x.ravel()):
        bits = np.float32(value).view(np.uint32)
        out[i] = 0x7FC0 if np.isnan(value) else (np.int64(bits) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return out.reshape(x.shape)


test_right_bits = right_answers(
    "09.3",
    {
        "torch": lambda x: torch.from_numpy(x.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16),
        "one by one": one_by_one,
        "compiled": compiled_one_by_one,
        "where": lambda x: rounded(x, half_even),
    },
)


# 09.2


def compiled(source):
    namespace = {"math": math, "np": np, "njit": njit, "prange": prange, "numba": numba}
    exec(source, namespace)
    return namespace["my_loop"]


def loop_with(*changes: tuple[str, str]):
    """The solution's loop with some texts in place of others."""
    return compiled(edited(SOLUTIONS["09.2"], *changes))


NEW_TOKEN_LEFT_OUT = (
    ("top *= scale", "top = np.float32(-3e38)"),
    ("total = np.float32(1)", "total = np.float32(0)"),
    ("acc = v[seq, kv_head].copy()", "acc = np.zeros(head_dim, np.float32)"),
    ("acc[d] / total", "acc[d] / max(total, np.float32(1e-30))"),
)
NO_RUNNING_SOFTMAX = (
    ("top *= scale", "top *= scale\n        first = math.exp(top)"),
    ("total = np.float32(1)", "total = np.float32(first)"),
    ("acc = v[seq, kv_head].copy()", "acc = (v[seq, kv_head] * first).astype(np.float32)"),
    ("shrink, weight = math.exp(top - new_top), math.exp(score - new_top)", "shrink, weight = 1, math.exp(score)"),
)
TOP_FROM_ZERO = (
    (
        "top *= scale",
        "score, top = top * scale, max(np.float32(0), top * scale)\n        first = math.exp(score - top)",
    ),
    ("total = np.float32(1)", "total = np.float32(first)"),
    ("acc = v[seq, kv_head].copy()", "acc = (v[seq, kv_head] * first).astype(np.float32)"),
)
BEFORE_TASKS = "    for task in prange"
ONE_ACC = (
    (BEFORE_TASKS, "    acc = np.empty(head_dim, np.float32)\n" + BEFORE_TASKS),
    ("acc = v[seq, kv_head].copy()", "acc[:] = v[seq, kv_head]"),
)
A_ROW_FOR_EACH_TASK = (
    (BEFORE_TASKS, "    rows = np.empty((num_seqs * num_heads, head_dim), np.float32)\n" + BEFORE_TASKS),
    ("acc = v[seq, kv_head].copy()", "acc = rows[task]\n        acc[:] = v[seq, kv_head]"),
)
OUT_OF_RANGE = ("block_table[seq, position // block_size]", "block_table[seq, position]")
test_a_wrong_loop = wrong_answers(
    "09.2",
    {
        "not scaled": (loop_with(("score *= scale", "pass"), ("top *= scale", "pass")), "not multiplied by `scale`"),
        "the new token left out": (loop_with(*NEW_TOKEN_LEFT_OUT), "the new token is left out"),
        "cached values are keys": (
            loop_with(("weight * v_cache", "weight * k_cache")),
            "the cached values are in v_cache",
        ),
        "KV heads dealt out": (loop_with(("head // group", "head % k_cache.shape[2]")), "a wrong KV head"),
        "last cached token left out": (
            loop_with(("range(context_lens[seq])", "range(context_lens[seq] - 1)")),
            "each sequence's last cached token is left out",
        ),
        "a token too many": (
            loop_with(("range(context_lens[seq])", "range(context_lens[seq] + 1)")),
            "NaN lies where nothing was written",
        ),
        "the first sequence's row": (
            loop_with(("block_table[seq,", "block_table[0,")),
            "every sequence reads the first",
        ),
        "first block again and again": (
            loop_with(("position // block_size]", "0]")),
            "every token is looked up in the sequence's first block",
        ),
        "block ids in 8 bits": (
            loop_with(
                ("block_table[seq, position // block_size]", "np.uint8(block_table[seq, position // block_size])")
            ),
            "context_lens=[300]",
        ),
        "acc not shrunk": (loop_with(("acc[d] * shrink", "acc[d]")), "acc must shrink by exp(top - new_top)"),
        "total not shrunk": (loop_with(("total * shrink", "total")), "total must shrink by exp(top - new_top)"),
        "no running softmax": (loop_with(*NO_RUNNING_SOFTMAX), "scores 128 times as large (exp overflows past 88)"),
        "top from 0": (loop_with(*TOP_FROM_ZERO), "scores 128 times as large"),
        "one acc for all tasks": (
            loop_with(*ONE_ACC),
            "acc is made before the loop, and more than one task writes to it",
        ),
        "an index out of range": (loop_with(OUT_OF_RANGE), "IndexError"),
        "v is changed": (loop_with((".copy()", "")), "v was handed in, and you have changed it: only out is written"),
        "added to what out holds": (
            loop_with(("] = acc[d] / total", "] += acc[d] / total")),
            "out holds what was in memory before: write to it, do not add to it",
        ),
        "nothing written where nothing is cached": (
            loop_with(
                (
                    "        head, seq = ",
                    "        if context_lens[task % num_seqs] == 0:\n            continue\n        head, seq = ",
                )
            ),
            "got 100, expected",
        ),
        "returned": (
            loop_with(("for d in range(head_dim):\n            out[seq, head, d] = acc[d] / total", "return acc")),
            "your loop returns something; write it to out[seq, head]",
        ),
        "one thread": (loop_with(("(parallel=True)", "")), "expected parallel=True in @njit(...)"),
        "no tasks": (loop_with(("in prange(", "in range(")), "loop over the tasks with prange"),
        "not compiled": (loop_with(("@njit(parallel=True)\n", "")), "expected a function under @njit(parallel=True)"),
        "what Numba does not know": (
            loop_with(("v[seq, kv_head].copy()", "np.copy(v[seq, kv_head], subok=True)")),
            "right as plain Python, but Numba cannot compile it",
        ),
    },
)


def test_what_tasks_share_is_told_apart_from_what_is_wrong():
    """One acc for all tasks: right one after the other, and not side by side. A stand-in, for a race may be won."""

    class Raced:
        def __init__(self, loop):
            self.py_func, self.targetoptions = loop.py_func, loop.targetoptions

        def __call__(self, out, *arguments):
            self.py_func(out, *arguments)
            out[0] += 1

    assert_refused("09.2", Raced(loop_with()), "right as plain Python, wrong when tasks run side by side")


test_a_right_loop = right_answers(
    "09.2",
    {
        "the solution, numbers reordered": loop_with(("(parallel=True)", "(parallel=True, fastmath=True)")),
        "two passes, no running softmax": compiled("""
@njit(parallel=True)
def my_loop(out, q, k, v, k_cache, v_cache, block_table, context_lens, scale):
    group, size, dim = q.shape[1] // k.shape[1], k_cache.shape[1], q.shape[2]
    for seq in prange(q.shape[0]):
        scores = np.empty(context_lens[seq] + 1)
        for head in range(q.shape[1]):
            for p in range(len(scores)):
                row = k[seq] if p == len(scores) - 1 else k_cache[block_table[seq, p // size], p % size]
                scores[p] = 0.0
                for d in range(dim):
                    scores[p] += q[seq, head, d] * row[head // group, d] * scale
            top, total = scores.max(), 0.0
            out[seq, head, :] = 0.0
            for p in range(len(scores)):
                row = v[seq] if p == len(scores) - 1 else v_cache[block_table[seq, p // size], p % size]
                weight = math.exp(scores[p] - top)
                total += weight
                for d in range(dim):
                    out[seq, head, d] += weight * row[head // group, d]
            for d in range(dim):
                out[seq, head, d] /= total
"""),
        "a row of one array for each task": loop_with(*A_ROW_FOR_EACH_TASK),
        "another name for prange": loop_with(("in prange(", "in numba.prange(")),
    },
)


def test_the_stub_is_not_attempted():
    namespace = {"njit": njit}
    exec(check("09.2", None).exercise.stub, namespace)
    assert check("09.2", namespace["my_loop"]).outcome == "not attempted"
