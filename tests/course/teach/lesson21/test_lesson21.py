"""Lesson 21: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution

# 21.1


def rows_of_w1(x, w1, b1, w2, b2, rank, size):
    """Cuts w1 by its inputs, and applies relu to a part of a sum."""
    part = slice(rank * len(w1) // size, (rank + 1) * len(w1) // size)
    y = np.maximum(x[:, part] @ w1[part] + b1, 0) @ w2
    return y + b2 if rank == 0 else y


def in_place(x, w1, b1, w2, b2, rank, size):
    part = slice(rank * len(b1) // size, (rank + 1) * len(b1) // size)
    b1 += (x @ w1)[0] * 0
    b2 *= rank == 0
    return np.maximum(x @ w1[:, part] + b1[part], 0) @ w2[part] + b2


test_wrong_parts = wrong_answers(
    "21.1",
    {
        "cut by inputs": (rows_of_w1, "you return"),
        "whole numbers": (solution("21.1", {"x @ w1": "x.astype(int) @ w1"}, np=np), "you return"),
        "the caller's bias": (in_place, "you have changed what you were called with"),
    },
)


def by_einsum(x, w1, b1, w2, b2, rank, size):
    h = np.einsum("nk,kh->nh", x, np.array_split(w1, size, axis=1)[rank]) + np.split(b1, size)[rank]
    h[h < 0] = 0
    return np.einsum("nh,hm->nm", h, np.split(w2, size)[rank]) + b2 * (rank == 0)


def with_zeros(x, w1, b1, w2, b2, rank, size):
    """The whole MLP, with zeros for what the other ranks have."""
    own = np.repeat(np.arange(size), len(b1) // size) == rank
    return np.maximum(x @ (w1 * own) + b1 * own, 0) @ (w2 * own[:, None]) + (b2 if rank == 0 else 0 * b2)


test_other_parts = right_answers("21.1", {"einsum and split": by_einsum, "with zeros": with_zeros})

# 21.2


test_wrong_rows = wrong_answers(
    "21.2",
    {
        "from 1": (solution("21.2", {"start + rank": "1 + start + rank"}), "you return"),
        "rank 0's": (solution("21.2", {"rank * rows": "0", "(rank + 1) * rows": "rows"}), "you return"),
    },
)


def from_a_mask(num_heads, num_kv_heads, head_dim, rank, size):
    """Marks each row with its rank, and collects those of one."""
    owners = [head * size // heads for heads in (num_heads, num_kv_heads, num_kv_heads) for head in range(heads)]
    return [row for row, owner in enumerate(np.repeat(owners, head_dim)) if owner == rank]


def by_splits(num_heads, num_kv_heads, head_dim, rank, size):
    rows = np.arange((num_heads + 2 * num_kv_heads) * head_dim)
    q, k, v = np.split(rows, [num_heads * head_dim, (num_heads + num_kv_heads) * head_dim])
    return [int(row) for part in (q, k, v) for row in np.split(part, size)[rank]]


test_other_rows = right_answers("21.2", {"a mask": from_a_mask, "splits": by_splits})

# 21.3


test_wrong_reduces = wrong_answers(
    "21.3",
    {
        "a truth value": (solution("21.3", {'("one shot", one_shot)': "(True, one_shot)"}), "way: you return True"),
        "microseconds": (solution("21.3", {'("ring", ring)': '("ring", 1e6 * ring)'}), "seconds: you return"),
        "only the way": (lambda *case: "ring", "expected (way, seconds), got 'ring'"),
    },
)


def by_parts(num_bytes, size, bytes_per_s, latency):
    """The smaller of two pairs; "one shot" is before "ring" in the alphabet, too."""
    whole, hops = num_bytes / bytes_per_s, 2 * size - 2
    seconds, way = min((latency + whole * (size - 1), "one shot"), (hops * latency + hops * (whole / size), "ring"))
    return way, seconds


test_other_reduces = right_answers(
    "21.3", {"the smaller pair": by_parts, "a list": lambda *case: list(solution("21.3")(*case))}
)

# 21.4


Layer = solution("21.4", torch=torch)
LINEAR = "torch.nn.functional.linear(x, self.weight, self.bias)"
RETURN = f"return self.all_reduce({LINEAR})"


def layer(instead):
    return solution("21.4", {RETURN: instead}, torch=torch)


class WeightOfTheClass(Layer):
    held: dict[torch.Size, torch.Tensor] = {}

    def __init__(self, weight, bias, all_reduce):
        super().__init__(self.held.setdefault(weight.shape, weight), bias, all_reduce)


class WeightOfTheLast(Layer):
    def __init__(self, weight, bias, all_reduce):
        super().__init__(None, bias, all_reduce)
        type(self).weight = weight
        del self.weight


class KeptByShape(Layer):
    def forward(self, x):
        if not hasattr(self, "kept"):
            self.kept = torch.nn.functional.linear(x, self.weight, self.bias)
        return self.all_reduce(self.kept.clone())


test_wrong_layers = wrong_answers(
    "21.4",
    {
        "once": (layer(f"y, self.bias = {LINEAR}, None; return self.all_reduce(y)"), "forward(-x), called after it"),
        "changes the bias": (
            layer(f"self.bias is None or self.bias.add_(1); {RETURN}"),
            "bias was handed in, and you have changed it",
        ),
        "kept": (KeptByShape, "forward(-x), called after it: you return"),
        "the weight of another layer": (WeightOfTheClass, "what all_reduce gets: you return"),
        "the weight of the last layer": (WeightOfTheLast, "what all_reduce gets: you return"),
        "changes x": (layer(f"y = {LINEAR}; x.zero_(); return self.all_reduce(y)"), "x was handed in, and you have"),
        "no sum": (layer(f"return {LINEAR}"), "all_reduce was not called"),
        "a list": (layer(f"{RETURN}.tolist()"), "forward must return a tensor, got list"),
    },
)


class BiasFirst(Layer):
    def forward(self, x):
        bias = 0 if self.bias is None else self.bias
        return self.all_reduce(bias + x @ self.weight.T)


class ByAddmm(Layer):
    def forward(self, x):
        y = x @ self.weight.T if self.bias is None else torch.addmm(self.bias, x, self.weight.T)
        self.all_reduce(y)  # in the same memory
        return y


test_other_layers = right_answers("21.4", {"bias first": BiasFirst, "the sum in place": ByAddmm})
