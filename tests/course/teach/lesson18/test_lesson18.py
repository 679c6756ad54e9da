"""Lesson 18: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from wrong_answers import right_answers, wrong_answers

# 18.1, a product for one row


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


# 18.2, a norm folded into a product


def in_place(norm, weight, bias):
    bias += weight @ norm[1]
    weight *= norm[0]
    return weight, bias


def for_one_row(norm, weight, bias):
    return weight[:1] * norm[0], weight[:1] @ norm[1] + bias[:1]


def in_double_precision(norm, weight, bias):
    return weight.astype(float) * norm[0], weight @ norm[1] + bias


def as_one_array(norm, weight, bias):
    return np.column_stack((weight * norm[0], weight @ norm[1] + bias))


test_wrong_folds = wrong_answers(
    "18.2",
    {
        "in place": (in_place, "was handed in, and you have changed it"),
        "one row alone": (for_one_row, "expected ("),
        "another dtype": (in_double_precision, "dtype float64, expected float32"),
        "one array": (as_one_array, "expected two NumPy arrays, (weight, bias), got ndarray"),
    },
)


def column_by_column(norm, weight, bias):
    folded, moved = np.empty_like(weight), bias.copy()
    for k in range(weight.shape[1]):
        folded[:, k] = norm[0, k] * weight[:, k]
        moved += norm[1, k] * weight[:, k]
    return folded, moved


def by_a_diagonal(norm, weight, bias):
    """Find the bias as what the whole gives for z = 0."""
    zero = np.zeros(weight.shape[1], np.float32)
    return [weight @ np.diag(norm[0]), weight @ (zero * norm[0] + norm[1]) + bias]


test_right_folds = right_answers("18.2", {"column by column": column_by_column, "by a diagonal": by_a_diagonal})


# 18.3, the race between two parallel loops


def attend_row(out, q, k, v, n):
    scores = np.empty(n + 1, np.float32)
    for t in range(n + 1):
        scores[t] = (q[n] * k[t]).sum()
    weights = np.exp(scores - scores.max())
    out[n] = 0
    for t in range(n + 1):
        out[n] += weights[t] / weights.sum() * v[t]


def untouched(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        v_cache[slots[n]] = v[n]
        k_cache[slots[n]] = k[n]
        attend_row(out, q, k_cache[slots], v_cache[slots], n)


def without_threads(out, q, k, v, k_cache, v_cache, slots):
    for n in range(len(q)):
        k_cache[slots[n]] = k[n]
        v_cache[slots[n]] = v[n]
        attend_row(out, q, k, v, n)


def half_a_fix(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]] = k[n]
    for n in prange(len(q)):
        v_cache[slots[n]] = v[n]
        attend_row(out, q, k, v_cache[slots], n)


def nothing_subtracted(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]] = k[n]
        v_cache[slots[n]] = v[n]
    for n in prange(len(q)):
        weights = np.exp((q[n] * k[: n + 1]).sum(1))
        out[n] = (weights / weights.sum()) @ v[: n + 1]


test_wrong_races = wrong_answers(
    "18.3",
    {
        "still there": (untouched, "there is a race"),
        "without threads": (without_threads, "loop with prange"),
        "half a fix": (half_a_fix, "there is a race. v_cache"),
        "nothing subtracted": (nothing_subtracted, "of 20 values are NaN"),
    },
)


def from_k_and_v(out, q, k, v, k_cache, v_cache, slots):
    """What is new is read where it came from, so one loop is enough."""
    for n in prange(len(q)):
        k_cache[slots[n]] = k[n]
        v_cache[slots[n]] = v[n]
        scores = np.empty(n + 1, np.float32)
        for t in range(n + 1):
            scores[t] = (q[n] * k[t]).sum()
        weights = np.exp(scores - scores.max())
        out[n] = 0
        for t in range(n + 1):
            out[n] += weights[t] / weights.sum() * v[t]


def written_before(out, q, k, v, k_cache, v_cache, slots):
    """One thread writes, all attend, with the online softmax."""
    for n in range(len(q)):
        for d in range(q.shape[1]):
            k_cache[slots[n], d] = k[n, d]
            v_cache[slots[n], d] = v[n, d]
    for n in prange(len(q)):
        top, total = np.float32(-np.inf), np.float32(0)
        for d in range(q.shape[1]):
            out[n, d] = 0
        for t in range(n + 1):
            score = np.float32(0)
            for d in range(q.shape[1]):
                score += q[n, d] * k_cache[slots[t], d]
            new_top = max(top, score)
            shrink, weight = np.exp(top - new_top), np.exp(score - new_top)
            total = total * shrink + weight
            for d in range(q.shape[1]):
                out[n, d] = out[n, d] * shrink + weight * v_cache[slots[t], d]
            top = new_top
        for d in range(q.shape[1]):
            out[n, d] /= total


test_right_races = right_answers("18.3", {"from k and v": from_k_and_v, "written before": written_before})


# 18.4, a product of your own in the engine


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
