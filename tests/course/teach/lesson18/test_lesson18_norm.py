"""18.2, a norm folded into a product: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from wrong_answers import right_answers, wrong_answers


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
