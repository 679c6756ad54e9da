"""18.3, the race between two parallel loops: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from numba import prange
from wrong_answers import right_answers, wrong_answers


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
