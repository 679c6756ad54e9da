"""18.2, a norm fused into a product: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import math

import numpy as np
from numba import prange
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution


def with_an_array(out, x, norm, eps, weight, bias):
    y = (x - x.mean()) / np.sqrt(x.var() + eps) * norm[0] + norm[1]
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * y[k]
        out[m] = total + bias[m]


def nothing_shared(out, x, norm, eps, weight, bias):
    mean, scale = x.mean(), 1 / np.sqrt(x.var() + eps)
    for m in range(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * ((x[k] - mean) * scale * norm[0, k] + norm[1, k])
        out[m] = total + bias[m]


SQUARED = {  # the mean of the squares less the square of the mean, in single precision
    "squares += (x[k] - mean) * (x[k] - mean)": "squares += x[k] * x[k]",
    " + eps": " - mean * mean + eps",
}


test_wrong_norms = wrong_answers(
    "18.2",
    {
        "a normalised row": (with_an_array, "asks for memory for new arrays"),
        "a variance that cancels": (solution("18.2", SQUARED, np=np, prange=prange), "values differ"),
        "without threads": (nothing_shared, "loop with prange"),
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


def taken_apart(out, x, norm, eps, weight, bias):
    """What does not depend on x is summed up apart."""
    mean, scale = x.mean(), 1 / np.sqrt(x.var() + eps)
    for m in prange(len(weight)):
        moving = still = np.float32(0)
        for k in range(len(x)):
            moving += weight[m, k] * norm[0, k] * (x[k] - mean)
            still += weight[m, k] * norm[1, k]
        out[m] = moving * scale + still + bias[m]


test_right_norms = right_answers("18.2", {"one pass": in_one_pass, "taken apart": taken_apart})
