"""18.4, a product of your own in the engine: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from numba import prange
from wrong_answers import right_answers, wrong_answers


def the_stages(out, x, weight, bias):
    for m in prange(len(weight)):
        for n in range(len(x)):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += weight[m, k] * x[n, k]
            out[n, m] = total + bias[m]


def threads_over_k(out, x, weight, bias):
    for n in range(len(x)):
        for m in range(len(weight)):
            out[n, m] = bias[m]
    for k in prange(x.shape[1]):
        for m in range(len(weight)):
            w = weight[m, k]
            for n in range(len(x)):
                out[n, m] += w * x[n, k]


def one_for_all_threads(out, x, weight, bias):
    sums = np.zeros(len(x), np.float32)
    for m in prange(len(weight)):
        sums[:] = 0
        for k in range(x.shape[1]):
            sums += weight[m, k] * x[:, k]
        out[:, m] = sums + bias[m]


def by_columns(out, x, weight, bias):
    for m in prange(len(weight)):
        sums = np.zeros(len(x), np.float32)
        for k in range(x.shape[1]):
            w = weight[m, k]
            for n in range(len(x)):
                sums[n] += w * x[n, k]
        for n in range(len(x)):
            out[n, m] = sums[n] + bias[m]


def row_copied(out, x, weight, bias):
    """A task copies its row of the weight, and loads the copy for each row of x."""
    for m in prange(len(weight)):
        row = weight[m].copy()
        for n in range(len(x)):
            out[n, m] = (row * x[n]).sum() + bias[m]


def copied_by_numpy(out, x, weight, bias):
    held = np.ascontiguousarray(weight)
    for m in prange(len(weight)):
        for n in range(len(x)):
            out[n, m] = (held[m] * x[n]).sum() + bias[m]


def with_its_own_row(out, x, weight, bias):
    """Right: what a task writes to its copy is its own."""
    for m in prange(len(weight)):
        sums = x[:, 0].copy()
        sums[:] = bias[m]
        for k in range(x.shape[1]):
            sums += weight[m, k] * x[:, k]
        out[:, m] = sums


test_wrong_products = wrong_answers(
    "18.4",
    {
        "the stage's": (the_stages, "elements of weight are read"),
        "a copy of the row": (row_copied, "elements of weight are read"),
        "a copy of all": (copied_by_numpy, "elements of weight are read"),
        "threads share the sums": (threads_over_k, "there is a race"),
        "one array for all tasks": (one_for_all_threads, "there is a race. its own array"),
    },
)


test_right_products = right_answers("18.4", {"all rows at once": by_columns, "its own row": with_its_own_row})
