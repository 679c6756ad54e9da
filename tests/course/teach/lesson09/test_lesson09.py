"""Lesson 09: wrong shares, wrong bits and wrong loops are told what is wrong, and right ones pass."""

from __future__ import annotations

import math
from functools import partial

import numba
import numpy as np
import pytest
import torch
from numba import njit, prange
from wrong_answers import assert_refused, right_answers, wrong_answers

from course.teach import check
from course.teach.exercises.solutions import solution

pytestmark = pytest.mark.slow


# 09.1


def tokens_of_threads(lengths, heads, threads):
    return [int(run.sum()) for run in np.array_split(lengths * heads, threads)]


test_a_wrong_share = wrong_answers(
    "09.1",
    {
        "the tokens of each": (tokens_of_threads, "expected a number, got list"),
        "the sum of all": (lambda lengths, heads, threads: sum(lengths) * heads, "expected"),
    },
)


def busiest_by_prefix_sums(lengths, heads, threads):
    upto = np.concatenate([[0], np.cumsum(lengths * heads)])
    starts = [(len(upto) - 1) // threads * t + min(t, (len(upto) - 1) % threads) for t in range(threads + 1)]
    return np.diff(upto[starts]).max()


def busiest_in_torch(lengths, heads, threads):
    return max(part.sum() for part in torch.tensor(lengths * heads).tensor_split(threads))


test_a_right_share = right_answers("09.1", {"prefix sums": busiest_by_prefix_sums, "a tensor": busiest_in_torch})


# 09.3


to_bfloat16 = solution("09.3", np=np)


def in_place(x):
    bits = x.view(np.uint32)
    bits += np.uint32(0x8000)
    return (bits >> 16).astype(np.uint16)


test_wrong_bits = wrong_answers(
    "09.3",
    {
        "numbers": (
            lambda x: torch.from_numpy(x).bfloat16().float().numpy(),
            "you return float32, expected an array of uint16",
        ),
        "a tensor": (
            lambda x: torch.from_numpy(x).bfloat16(),
            "you return torch.bfloat16, expected an array of uint16",
        ),
        "flat": (
            lambda x: to_bfloat16(x).ravel(),
            "you return an array of shape (1,), expected (), that of x",
        ),
        "no sign": (lambda x: to_bfloat16(np.abs(x)), "you return '4f27', expected 'cf27'"),
        "in place": (in_place, "x was handed in, and you have changed it"),
    },
)


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
        "compiled": compiled_one_by_one,
        "through PyTorch": lambda x: torch.from_numpy(x.copy()).bfloat16().view(torch.uint16).numpy(),
    },
)


# 09.2


loop_with = partial(solution, "09.2", math=math, np=np, njit=njit, prange=prange, numba=numba)
NO_RUNNING_SOFTMAX = {
    "top *= scale": "top *= scale\n        first = math.exp(top)",
    "total = np.float32(1)": "total = np.float32(first)",
    "acc = v[seq, kv_head].copy()": "acc = (v[seq, kv_head] * first).astype(np.float32)",
    "shrink, weight = math.exp(top - new_top), math.exp(score - new_top)": "shrink, weight = 1, math.exp(score)",
}
TOP_FROM_ZERO = NO_RUNNING_SOFTMAX | {
    "top *= scale": "score, top = top * scale, max(np.float32(0), top * scale)\n        first = math.exp(score - top)",
    "shrink, weight = math.exp(top - new_top), math.exp(score - new_top)": (
        "shrink, weight = math.exp(top - new_top), math.exp(score - new_top)"
    ),
}
TASKS = "    for task in prange(num_seqs * num_heads):\n"
PLACE = "        head, seq = task // num_seqs, task % num_seqs\n"
BLOCK = "block_table[seq, position // block_size]"
COPY = "acc = v[seq, kv_head].copy()"
ONE_ACC = {TASKS: "    acc = np.empty(head_dim, np.float32)\n" + TASKS, COPY: "acc[:] = v[seq, kv_head]"}
A_ROW_FOR_EACH_TASK = {
    TASKS: "    rows = np.empty((num_seqs * num_heads, head_dim), np.float32)\n" + TASKS,
    COPY: "acc = rows[task]\n        acc[:] = v[seq, kv_head]",
}
DIVIDED_LATER = {
    "= acc[d] / total": """= acc[d]
        totals[seq, head] = total
    for row in prange(num_seqs * num_heads):
        for d in range(head_dim):
            out[row // num_heads, row % num_heads, d] /= totals[row // num_heads, row % num_heads]""",
    TASKS: f"    totals = np.empty((num_seqs, num_heads), np.float32)\n{TASKS}",
}
test_a_wrong_loop = wrong_answers(
    "09.2",
    {
        "block ids in 8 bits": (loop_with({BLOCK: f"np.uint8({BLOCK})"}), "context_lens=[300]"),
        "no running softmax": (loop_with(NO_RUNNING_SOFTMAX), "scores of about 110 (exp: inf past 88, 0 below -104)"),
        "top from 0": (loop_with(TOP_FROM_ZERO), "scores of about -110 (exp: inf past 88, 0 below -104)"),
        "one acc for all tasks": (loop_with(ONE_ACC), "more than one writes to acc: make it inside the prange"),
        "v is changed": (loop_with({".copy()": ""}), "v was handed in, and you have changed it: only out is written"),
        "returned": (
            loop_with({"for d in range(head_dim):\n            out[seq, head, d] = acc[d] / total": "return acc"}),
            "your loop returns something; write it to out[seq, head]",
        ),
        "one thread": (loop_with({"(parallel=True)": ""}), "expected a function under @njit(parallel=True)"),
        "one task for all": (
            loop_with({TASKS: "    for _ in prange(1):\n     for task in range(num_seqs * num_heads):\n"}),
            "a task of prange writes up to 12 rows of out",
        ),
        "a task for each sequence": (
            loop_with({TASKS: "    for seq in prange(num_seqs):\n     for head in prange(num_heads):\n", PLACE: ""}),
            "a task of prange writes up to 4 rows of out",
        ),
        "tasks that do next to nothing": (
            loop_with({TASKS: TASKS + "        out[0, 0, 0] = 0.0\n" + TASKS.replace("prange", "range")}),
            "all tasks together write 1 of 12",
        ),
        "no tasks": (loop_with({"in prange(": "in range("}), "all tasks together write 0 of 12"),
        "what Numba does not know": (
            loop_with({"v[seq, kv_head].copy()": "np.copy(v[seq, kv_head], subok=True)"}),
            "TypingError",
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

    assert_refused("09.2", Raced(loop_with()), "right as plain Python, wrong when compiled")


test_a_right_loop = right_answers(
    "09.2",
    {
        "a row of one array for each task": loop_with(A_ROW_FOR_EACH_TASK),
        "two loops, one after the other": loop_with(DIVIDED_LATER),
        "another name for prange": loop_with({"in prange(": "in numba.prange("}),
    },
)


def test_the_stub_is_not_attempted():
    namespace = {"njit": njit}
    exec(check("09.2", None).exercise.stub, namespace)
    assert check("09.2", namespace["my_loop"]).outcome == "not attempted"
