"""Lesson 18: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange
from wrong_answers import right_answers, wrong_answers

# 18.1


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

# 18.2


def with_an_array(out, x, norm, eps, weight, bias):
    y = (x - x.mean()) / np.sqrt(x.var() + eps) * norm[0] + norm[1]
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * y[k]
        out[m] = total + bias[m]


def with_an_array_per_task(out, x, norm, eps, weight, bias):
    mean, variance = x.mean(), x.var()
    for m in prange(len(weight)):
        out[m] = (weight[m] * ((x - mean) / np.sqrt(variance + eps) * norm[0] + norm[1])).sum() + bias[m]


def in_place(out, x, norm, eps, weight, bias):
    mean, variance = x.mean(), x.var()
    for k in range(len(x)):
        x[k] = (x[k] - mean) / np.sqrt(variance + eps) * norm[0, k] + norm[1, k]
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * x[k]
        out[m] = total + bias[m]


def rms(out, x, norm, eps, weight, bias):
    squares = np.float32(0)
    for k in range(len(x)):
        squares += x[k] * x[k]
    scale = 1 / np.sqrt(squares / len(x) + eps)
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * (x[k] * scale * norm[0, k] + norm[1, k])
        out[m] = total + bias[m]


def squares_less_mean(out, x, norm, eps, weight, bias):
    """Without the square of the mean."""
    mean = x.mean()
    squares = np.float32(0)
    for k in range(len(x)):
        squares += x[k] * x[k]
    scale = 1 / np.sqrt(squares / len(x) - mean + eps)
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * ((x[k] - mean) * scale * norm[0, k] + norm[1, k])
        out[m] = total + bias[m]


def scaled_at_the_end(out, x, norm, eps, weight, bias):
    """Right but for the bias of the norm, which is scaled too."""
    mean, scale = x.mean(), 1 / np.sqrt(x.var() + eps)
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * ((x[k] - mean) * norm[0, k] + norm[1, k])
        out[m] = total * scale + bias[m]


def nothing_shared(out, x, norm, eps, weight, bias):
    mean, scale = x.mean(), 1 / np.sqrt(x.var() + eps)
    for m in range(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * ((x[k] - mean) * scale * norm[0, k] + norm[1, k])
        out[m] = total + bias[m]


def one_less(out, x, norm, eps, weight, bias):
    mean = x.mean()
    scale = 1 / np.sqrt(x.var() * len(x) / (len(x) - 1) + eps)
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * ((x[k] - mean) * scale * norm[0, k] + norm[1, k])
        out[m] = total + bias[m]


test_wrong_norms = wrong_answers(
    "18.2",
    {
        "a normalised row": (with_an_array, "asks for memory for new arrays"),
        "a normalised row per task": (with_an_array_per_task, "asks for memory for new arrays"),
        "in place": (in_place, "x was handed in"),
        "an RMS norm": (rms, "values differ"),
        "the mean is not squared": (squares_less_mean, "values differ, first at"),
        "scaled at the end": (scaled_at_the_end, "values differ"),
        "without threads": (nothing_shared, "loop with prange"),
        "one value less": (one_less, "divide by the number of values"),
    },
)


def in_one_pass(out, x, norm, eps, weight, bias):
    """Mean and squares together, in double precision."""
    total = squares = 0.0
    for k in range(len(x)):
        total += x[k]
        squares += np.float64(x[k]) * x[k]
    mean = total / len(x)
    scale = 1 / math.sqrt(squares / len(x) - mean * mean + eps)
    for m in prange(len(weight)):
        result = 0.0
        for k in range(len(x)):
            result += weight[m, k] * ((x[k] - mean) * scale * norm[0, k] + norm[1, k])
        out[m] = result + bias[m]


def in_every_task(out, x, norm, eps, weight, bias):
    for m in prange(len(weight)):
        mean, scale = x.mean(), 1 / np.sqrt(x.var() + eps)
        total = bias[m]
        for k in range(len(x)):
            total += weight[m, k] * ((x[k] - mean) * scale * norm[0, k] + norm[1, k])
        out[m] = total


def taken_apart(out, x, norm, eps, weight, bias):
    """What does not depend on x is summed up apart."""
    mean, scale = x.mean(), 1 / np.sqrt(x.var() + eps)
    for m in prange(len(weight)):
        moving = still = np.float32(0)
        for k in range(len(x)):
            moving += weight[m, k] * norm[0, k] * (x[k] - mean)
            still += weight[m, k] * norm[1, k]
        out[m] = moving * scale + still + bias[m]


test_right_norms = right_answers(
    "18.2", {"one pass": in_one_pass, "in every task": in_every_task, "taken apart": taken_apart}
)

# 18.3


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


def no_cache(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
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


def least_subtracted(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]] = k[n]
        v_cache[slots[n]] = v[n]
    for n in prange(len(q)):
        scores = (q[n] * k[: n + 1]).sum(1)
        weights = np.exp(scores - scores.min())
        out[n] = (weights / weights.sum()) @ v[: n + 1]


def not_causal(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]], v_cache[slots[n]] = k[n], v[n]
    for n in prange(len(q)):
        scores = q[n] * k
        weights = np.exp(scores.sum(axis=1) - scores.sum(axis=1).max())
        out[n] = 0
        for t in range(len(q)):
            out[n] += weights[t] / weights.sum() * v[t]


def without_itself(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]], v_cache[slots[n]] = k[n], v[n]
        out[n] = 0
        if n:
            scores = np.empty(n, np.float32)
            for t in range(n):
                scores[t] = (q[n] * k[t]).sum()
            weights = np.exp(scores - scores.max())
            for t in range(n):
                out[n] += weights[t] / weights.sum() * v[t]


def slots_as_positions(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[n], v_cache[n] = k[n], v[n]
        attend_row(out, q, k, v, n)


def every_task_writes_all(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        for t in range(len(q)):
            k_cache[slots[t]], v_cache[slots[t]] = k[t], v[t]
        attend_row(out, q, k, v, n)


test_wrong_races = wrong_answers(
    "18.3",
    {
        "still there": (untouched, "there is a race"),
        "without threads": (without_threads, "loop with prange"),
        "nothing is cached": (no_cache, "k_cache must hold"),
        "half a fix": (half_a_fix, "there is a race. v_cache"),
        "the whole prompt": (not_causal, "token n sees tokens 0 to n"),
        "without itself": (without_itself, "a token attends to itself"),
        "positions for slots": (slots_as_positions, "k_cache must hold"),
        "all tasks write the same": (every_task_writes_all, "there is a race"),
        "nothing subtracted": (nothing_subtracted, "of 20 values are NaN"),
        "the least subtracted": (least_subtracted, "of 20 values are NaN"),
    },
)


def two_loops(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]], v_cache[slots[n]] = k[n], v[n]
    for n in prange(len(q)):
        scores = np.empty(n + 1, np.float32)
        for t in range(n + 1):
            scores[t] = (q[n] * k_cache[slots[t]]).sum()
        weights = np.exp(scores - scores.max())
        out[n] = 0
        for t in range(n + 1):
            out[n] += weights[t] / weights.sum() * v_cache[slots[t]]


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


test_right_races = right_answers(
    "18.3", {"two loops": two_loops, "from k and v": from_k_and_v, "written before": written_before}
)

# 18.4


def the_stages(out, x, weight, bias):
    for m in prange(len(weight)):
        for n in range(len(x)):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += weight[m, k] * x[n, k]
            out[n, m] = total + bias[m]


def in_pairs(out, x, weight, bias):
    for m in prange(len(weight)):
        for n in range(0, len(x) - 1, 2):
            one = two = np.float32(0)
            for k in range(x.shape[1]):
                w = weight[m, k]
                one += w * x[n, k]
                two += w * x[n + 1, k]
            out[n, m], out[n + 1, m] = one + bias[m], two + bias[m]
        if len(x) % 2:
            out[-1, m] = (weight[m] * x[-1]).sum() + bias[m]


def rest_forgotten(out, x, weight, bias):
    for m in prange(len(weight)):
        for n in range(0, len(x) - 3, 4):
            a = b = c = d = bias[m]
            for k in range(x.shape[1]):
                w = weight[m, k]
                a, b, c, d = a + w * x[n, k], b + w * x[n + 1, k], c + w * x[n + 2, k], d + w * x[n + 3, k]
            out[n, m], out[n + 1, m], out[n + 2, m], out[n + 3, m] = a, b, c, d


def one_row_wrong(out, x, weight, bias):
    by_columns(out, x, weight, bias)
    for n in prange(len(x)):
        if n % 4 == 3:
            out[n, 0] = out[n - 1, 0]


def rows_as_tasks(out, x, weight, bias):
    for n in prange(len(x)):
        for m in range(len(weight)):
            out[n, m] = (weight[m] * x[n]).sum() + bias[m]


def past_the_end(out, x, weight, bias):
    for m in prange(len(weight)):
        for n in range(0, len(x), 4):
            for i in range(4):
                out[n + i, m] = bias[m]
            for k in range(x.shape[1]):
                w = weight[m, k]
                for i in range(4):
                    out[n + i, m] += w * x[n + i, k]


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


test_wrong_products = wrong_answers(
    "18.4",
    {
        "the stage's": (the_stages, "the weight's elements are read"),
        "pairs": (in_pairs, "the weight's elements are read"),
        "without the rest": (rest_forgotten, "values differ"),
        "one row is another's": (one_row_wrong, "values differ, first at"),
        "rows of x as tasks": (rows_as_tasks, "the weight's elements are read"),
        "past the end": (past_the_end, "IndexError"),
        "threads share the sums": (threads_over_k, "there is a race"),
        "one array for all tasks": (one_for_all_threads, "there is a race. its own array"),
    },
)


def eight_rows(out, x, weight, bias):
    """Groups of eight, with an array of sums; the last group is what is left."""
    for m in prange(len(weight)):
        sums = np.empty(8, np.float32)
        for first in range(0, len(x), 8):
            count = min(8, len(x) - first)
            sums[:] = bias[m]
            for k in range(x.shape[1]):
                w = weight[m, k]
                for i in range(count):
                    sums[i] += w * x[first + i, k]
            for i in range(count):
                out[first + i, m] = sums[i]


def row_copied(out, x, weight, bias):
    """A task copies its row of the weight, and reads the copy."""
    for m in prange(len(weight)):
        row = weight[m].copy()
        for n in range(len(x)):
            out[n, m] = (row * x[n]).sum() + bias[m]


test_right_products = right_answers(
    "18.4", {"all rows at once": by_columns, "eight rows": eight_rows, "a copy of the row": row_copied}
)
