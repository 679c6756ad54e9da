"""18.1, a product for one row: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from wrong_answers import right_answers, wrong_answers


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


def returns(out, x, weight, bias):
    for m in prange(len(weight)):
        out[m] = (weight[m] * x).sum() + bias[m]
    return out


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


def nearly_all_in_one_task(out, x, weight, bias):
    last = len(weight) - 1
    for task in prange(2):
        for m in range(0 if task == 0 else last, last if task == 0 else last + 1):
            out[m] = (weight[m] * x).sum() + bias[m]


test_wrong_rows = wrong_answers(
    "18.1",
    {
        "tasks add into out": (adds_into_out, "there is a race"),
        "one total for all tasks": (shared_total, "there is a race. its own array"),
        "shared in name": (shared_in_name, "weight is read outside of the parallel loop"),
        "nearly all in one task": (nearly_all_in_one_task, "one task reads most of weight"),
        "returned": (returns, "returns something"),
        "a dict of two types": (a_dict, "Numba cannot compile it"),
    },
)


@njit
def sum_of_products(row, x):
    return (row * x).sum()


def blocks_of_rows(out, x, weight, bias):
    for block in prange((len(weight) + 63) // 64):
        for m in range(64 * block, min(64 * block + 64, len(weight))):
            out[m] = sum_of_products(weight[m], x) + bias[m]


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
        "blocks of rows, with a compiled helper": blocks_of_rows,
        "compiled already": compiled_already,
        "two loops": products_first,
    },
)
