"""Lesson 21: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from roseinfer.teach.lesson21 import exercises

# 21.1


def rows_of_w1(x, w1, b1, w2, b2, rank, size):
    """Cuts w1 by its inputs, and applies relu to a part of a sum."""
    part = slice(rank * len(w1) // size, (rank + 1) * len(w1) // size)
    y = np.maximum(x[:, part] @ w1[part] + b1, 0) @ w2
    return y + b2 if rank == 0 else y


def last_share_first(x, w1, b1, w2, b2, rank, size):
    y = exercises.partial_mlp(x, w1, b1, w2, b2, size - 1 - rank, size)
    return y


def no_return(x, w1, b1, w2, b2, rank, size):
    exercises.partial_mlp(x, w1, b1, w2, b2, rank, size)


test_wrong_parts = wrong_answers(
    "21.1",
    {
        "cut by inputs": (rows_of_w1, "you return"),
        "in another order": (last_share_first, "you return"),
        "no return": (no_return, "is a `return` missing?"),
    },
)


def by_einsum(x, w1, b1, w2, b2, rank, size):
    h = np.einsum("nk,kh->nh", x, np.array_split(w1, size, axis=1)[rank]) + np.split(b1, size)[rank]
    h[h < 0] = 0
    return np.einsum("nh,hm->nm", h, np.split(w2, size)[rank]) + b2 * (rank == 0)


test_other_parts = right_answers("21.1", {"einsum and split": by_einsum})

# 21.2


def one_based(num_heads, num_kv_heads, head_dim, rank, size):
    return [row + 1 for row in exercises.qkv_rows(num_heads, num_kv_heads, head_dim, rank, size)]


def heads_only(num_heads, num_kv_heads, head_dim, rank, size):
    return exercises.qkv_rows(num_heads, num_kv_heads, head_dim, 0, size)


test_wrong_rows = wrong_answers(
    "21.2",
    {"from 1": (one_based, "expected [0"), "rank 0's": (heads_only, "you return")},
)


def from_a_mask(num_heads, num_kv_heads, head_dim, rank, size):
    """Marks each row with its rank, and collects those of one."""
    owners = [head * size // heads for heads in (num_heads, num_kv_heads, num_kv_heads) for head in range(heads)]
    return [row for row, owner in enumerate(np.repeat(owners, head_dim)) if owner == rank]


test_other_rows = right_answers("21.2", {"a mask": from_a_mask})

# 21.3


def off_by_one(rank, size):
    return [(rank - 1 - step) % size for step in range(2 * (size - 1))]


test_wrong_rings = wrong_answers("21.3", {"starts with the neighbour's chunk": (off_by_one, "you return")})


def follow(rank, size):
    """What a rank sends is what its left neighbour sent in the step before."""
    if size == 1:
        return []
    sent = list(range(size))
    found = []
    for _ in range(2 * (size - 1)):
        found.append(sent[rank])
        sent = [sent[i - 1] for i in range(size)]
    return found


test_other_rings = right_answers("21.3", {"followed": follow})


def test_the_ring_sums_every_chunk_on_every_rank():
    for size in range(1, 7):
        numbers = [[10**rank * (chunk + 1) for chunk in range(size)] for rank in range(size)]
        wanted = [sum(own[chunk] for own in numbers) for chunk in range(size)]
        sends = [exercises.ring_chunks(rank, size) for rank in range(size)]
        for step in range(2 * (size - 1)):
            messages = [(sends[rank][step], numbers[rank][sends[rank][step]]) for rank in range(size)]
            for rank, (chunk, number) in enumerate(messages):
                to = numbers[(rank + 1) % size]
                to[chunk] = to[chunk] + number if step < size - 1 else number
        assert numbers == [wanted] * size


# 21.4


class Layer(torch.nn.Module):
    def __init__(self, weight, bias, all_reduce):
        super().__init__()
        self.weight, self.bias, self.all_reduce = weight, bias, all_reduce


class AddsToTheBias(Layer):
    def forward(self, x):
        y = x @ self.weight.T
        return self.all_reduce(y if self.bias is None else self.bias.add_(y[0]).expand_as(y).clone())


class Twice(Layer):
    def forward(self, x):
        return self.all_reduce(self.all_reduce(torch.nn.functional.linear(x, self.weight, self.bias)))


class NoSum(Layer):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


class AsNumbers(Layer):
    def forward(self, x):
        return self.all_reduce(x @ self.weight.T).tolist()


test_wrong_layers = wrong_answers(
    "21.4",
    {
        "changes the bias": (AddsToTheBias, "the bias was handed in, and forward has changed it"),
        "two sums": (Twice, "you return"),
        "no sum": (NoSum, "all_reduce was not called"),
        "a list": (AsNumbers, "forward must return a tensor, got list"),
    },
)


class BiasFirst(Layer):
    def forward(self, x):
        bias = 0 if self.bias is None else self.bias
        return self.all_reduce(bias + x @ self.weight.T)


class ALinearInside(torch.nn.Module):
    def __init__(self, weight, bias, all_reduce):
        super().__init__()
        self.linear = torch.nn.Linear(*weight.T.shape, bias=bias is not None)
        self.linear.weight.data = weight
        if bias is not None:
            self.linear.bias.data = bias
        self.all_reduce = all_reduce

    @torch.no_grad()
    def forward(self, x):
        return self.all_reduce(self.linear(x))


test_other_layers = right_answers("21.4", {"bias first": BiasFirst, "nn.Linear": ALinearInside})
