"""18.1, a product for one row: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from wrong_answers import right_answers, wrong_answers


def transposed(out, x, weight, bias):
    for k in prange(len(x)):
        for m in range(len(weight)):
            out[m] = 0
            out[m] += weight[m, k] * x[k]
        out[k] += bias[k]


def adds_into_out(out, x, weight, bias):
    for m in range(len(weight)):
        out[m] = bias[m]
    for k in prange(len(x)):  # tasks share every element of out
        for m in range(len(weight)):
            out[m] += weight[m, k] * x[k]


def shared_total(out, x, weight, bias):
    total = np.zeros(1, np.float32)
    for m in prange(len(weight)):
        total[0] = 0
        for k in range(len(x)):
            total[0] += weight[m, k] * x[k]
        out[m] = total[0] + bias[m]


def in_turn(out, x, weight, bias):
    for m in range(len(weight)):
        out[m] = (weight[m] * x).sum() + bias[m]


def at_once(out, x, weight, bias):
    out[:] = weight @ x + bias


def returns(out, x, weight, bias):
    in_turn(out, x, weight, bias)
    return out


def changes_x(out, x, weight, bias):
    for m in prange(len(weight)):
        out[m] = (weight[m] * x).sum() + bias[m]
    x[0] = 0


def a_dict(out, x, weight, bias):
    for m in prange(len(weight)):
        held = {"total": 0.0, 1: "text"}
        for k in range(len(x)):
            held["total"] += weight[m, k] * x[k]
        out[m] = held["total"] + bias[m]


def shared_in_name(out, x, weight, bias):
    """A loop with threads that has nothing to do, and all work in a serial one."""
    for m in prange(len(weight)):
        out[m] = 0
    for m in range(len(weight)):
        out[m] = (weight[m] * x).sum() + bias[m]


def in_one_task(out, x, weight, bias):
    for _ in prange(1):
        for m in range(len(weight)):
            out[m] = (weight[m] * x).sum() + bias[m]


def last_column_missing(out, x, weight, bias):
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x) - 1):
            total += weight[m, k] * x[k]
        out[m] = total + bias[m]


test_wrong_rows = wrong_answers(
    "18.1",
    {
        "columns as tasks": (transposed, "values differ, first at"),
        "tasks add into out": (adds_into_out, "there is a race"),
        "one total for all tasks": (shared_total, "there is a race. its own array"),
        "without threads": (in_turn, "loop with prange"),
        "no loop": (at_once, "loop with prange"),
        "shared in name": (shared_in_name, "weight is read outside of the parallel loop"),
        "in one task": (in_one_task, "one task reads all of weight"),
        "returned": (returns, "returns something"),
        "changes x": (changes_x, "x was handed in"),
        "a dict of two types": (a_dict, "Numba cannot compile it"),
        "without the last column": (last_column_missing, "the last column of the weight is left out"),
    },
)


def row_by_row(out, x, weight, bias):
    for m in prange(len(weight)):
        out[m] = bias[m]
        for k in range(len(x)):
            out[m] += weight[m, k] * x[k]


def by_slices(out, x, weight, bias):
    for m in prange(weight.shape[0]):
        out[m] = (weight[m] * x).sum() + bias[m]


def two_totals(out, x, weight, bias):
    for m in prange(len(out)):
        even = odd = np.float32(0)
        for k in range(0, len(x) - 1, 2):
            even += weight[m, k] * x[k]
            odd += weight[m, k + 1] * x[k + 1]
        if len(x) % 2:
            even += weight[m, -1] * x[-1]
        out[m] = even + odd + bias[m]


@njit(parallel=True)
def compiled_already(out, x, weight, bias):
    for m in prange(len(weight)):
        total = bias[m]
        for k in range(len(x)):
            total += weight[m, k] * x[k]
        out[m] = total


def products_first(out, x, weight, bias):
    products = np.empty_like(weight)
    for m in prange(len(weight)):
        for k in range(len(x)):
            products[m, k] = weight[m, k] * x[k]
    for m in prange(len(weight)):
        out[m] = products[m].sum() + bias[m]


test_right_rows = right_answers(
    "18.1",
    {
        "into out": row_by_row,
        "by slices": by_slices,
        "two totals": two_totals,
        "compiled already": compiled_already,
        "two loops": products_first,
    },
)
