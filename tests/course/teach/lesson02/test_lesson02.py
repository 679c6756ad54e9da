"""Lesson 02: wrong answers to its exercises are told what is wrong, and unusual right ones pass."""

from __future__ import annotations

import re

import nbformat
import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from roseinfer.paths import ROOT

# 02.3


def kv_bytes(c, n, width):
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * n * width


def useful(c, lengths, w):
    return kv_bytes(c, sum(lengths), w)


def padded(c, lengths, w):
    return kv_bytes(c, len(lengths) * max(lengths), w)


test_wrong_bytes_of_padding = wrong_answers(
    "02.3",
    {
        "one number": (lambda c, lengths, w: padded(c, lengths, w), "expected (useful, padded), got 2"),
        "12 layers": (
            lambda c, n, w: (24 * c.num_kv_heads * c.head_dim * sum(n) * w, padded(c, n, w)),
            "head_dim=1, lengths=[1], bytes_per_value=1: useful: you return 24, expected 2",
        ),
        "rounded to MB": (lambda *a: (useful(*a) / 1e6, padded(*a) / 1e6), "useful: you return 2e-06, expected 2"),
    },
)


# 02.1


def joined(blocks, n):
    return torch.cat(blocks, dim=1)[:, :n]


def into(blocks, n, out):
    for i, block in enumerate(blocks):
        start, end = 64 * i, min(64 * i + 64, n)
        out[:, start:end] = block[:, : end - start]


def whole_blocks_into(blocks, n, out):
    for i, block in enumerate(blocks):
        room = out[:, 64 * i : 64 * i + 64]
        room.copy_(block[:, : room.size(1)])


def always_to_the_front(blocks, n, out):
    for i, block in enumerate(blocks):
        end = min(64, n - 64 * i)
        out[:, :end] = block[:, :end]


def token_by_token(blocks, n, out):
    for token in range(n):
        out[:, token] = blocks[token // 64][:, token % 64]


def clone_first(blocks, n, out):
    into([block.clone() for block in blocks], n, out)


def cuts_the_cache(blocks, n, out):
    into(blocks, n, out)
    blocks[-1] = blocks[-1][:, : (n - 1) % 64 + 1]


def by_arithmetic(blocks, n, out):
    """Copies everything twice, and never calls copy_ for it."""
    for i, block in enumerate(blocks):
        start, end = 64 * i, min(64 * i + 64, n)
        out[:, start:end] = block[:, : end - start] * 1


def to_the_name(blocks, n, out):
    out = joined(blocks, n)
    assert out.size(1) == n


def each_block_twice(blocks, n, out):
    into(blocks, n, out)
    into(blocks, n, out)


def zeroed_then_added(blocks, n, out):
    for i, block in enumerate(blocks):
        row = out[:, 64 * i : min(64 * i + 64, n)]
        row.zero_().add_(block[:, : row.size(1)])


def in_the_length_of_out(blocks, n, out):
    """Takes out for as long as the sequence."""
    into(blocks, min(out.size(1), 64 * len(blocks)), out)


def cat_then_copy(blocks, n, out):
    out[:, :n].copy_(joined(blocks, n))


def returned(blocks, n, out):
    into(blocks, n, out)
    return out


test_a_wrong_gather_into_a_row = wrong_answers(
    "02.1",
    {
        "a new tensor returned": (lambda blocks, n, out: joined(blocks, n), "out was not changed"),
        "the name alone": (to_the_name, "out [2, 26, 2]: out was not changed: write into it with out[...] = ..."),
        "padding set to zero": (
            lambda blocks, n, out: into(blocks, n, out.zero_()),
            "num_tokens=1, 1 × [2, 64, 2] in float32, out [2, 26, 2]: out[:, 1:] was overwritten",
        ),
        "whole blocks": (whole_blocks_into, "out [2, 26, 2]: out[:, 1:] was overwritten: it is padding"),
        "as long as out": (in_the_length_of_out, "out[:, 1:] was overwritten: it is padding"),
        "a token too few": (lambda b, n, out: into(b, n - 1, out), "num_tokens=1, "),
        "first block alone": (lambda b, n, out: into(b[:1], min(n, 64), out), "1 of 65 tokens were not written"),
        "every block to the front": (always_to_the_front, "1 of 65 tokens were not written, the first is out[:, 64]"),
        "full blocks alone": (lambda b, n, out: into(b, n // 64 * 64, out), "out was not changed"),
        "last block first": (
            lambda b, n, out: into([*b[1:], b[0]] if n > 64 else b, n, out),
            "num_tokens=65, 2 × [3, 64, 2] in float32, out [3, 65, 2]: 378 of 390 values are NaN, first at (0, 1, 0)",
        ),
        "cat, then copy": (cat_then_copy, "but cat makes another tensor, and its values are copied twice"),
        "cloned first": (
            clone_first,
            "the values are right, but clone makes another tensor, and its values are copied",
        ),
        "times 1": (by_arithmetic, "the values are right, but mul makes another tensor, and its values are copied"),
        "token by token": (
            token_by_token,
            "num_tokens=6, 1 × [2, 64, 2] in float32, out [2, 30, 2]: the values are right, but 5 writes into out too "
            "many (6, the budget is 1, one a block)",
        ),
        "each block twice": (each_block_twice, "1 writes into out too many (2, the budget is 1, one a block)"),
        "zeroed, then added": (zeroed_then_added, "1 writes into out too many (2, the budget is 1, one a block)"),
        "the cache cut": (cuts_the_cache, "blocks[0] was handed in, and you have changed it: it is the cache"),
        "the row returned": (returned, "out is right, and you return a Tensor: the caller has out, return nothing"),
        "token by token, unseen by torch": (
            lambda blocks, n, out: token_by_token([block.numpy() for block in blocks], n, out.numpy()),
            "the values are right, but torch has not written them: write to out itself, not through NumPy",
        ),
    },
)


# Right answers.


test_right_bytes_of_padding = right_answers(
    "02.3",
    {
        "an array of NumPy's integers": lambda c, n, w: np.array([np.sum(n), len(n) * np.max(n)]) * kv_bytes(c, 1, w),
        "sizes of real tensors": lambda c, lengths, w: tuple(
            sum(w * torch.empty(2, c.num_layers, c.num_kv_heads, n, c.head_dim).numel() for n in rows)
            for rows in (lengths, [max(lengths)] * len(lengths))
        ),
    },
)


def last_block_first(blocks, num_tokens, out):
    while blocks:
        *blocks, last = blocks
        start = 64 * len(blocks)
        torch.Tensor.copy_(out.narrow(1, start, num_tokens - start), last.narrow(1, 0, num_tokens - start))
        num_tokens = start


def through_its_transpose(blocks, n, out):
    for i in range(0, n, 64):
        out.transpose(0, 1)[i : i + 64][: n - i].copy_(blocks[i // 64].transpose(0, 1)[: n - i])


test_a_right_gather_into_a_row = right_answers(
    "02.1",
    {
        "the last block first": last_block_first,
        "through its transpose": through_its_transpose,
    },
)


def test_the_copies_that_the_lesson_calls_the_same_are_the_same_on_the_page():
    """The riddle: fewer bytes, as many copies. A trace whose steps cross a block's edge would show more of them."""
    nb = nbformat.read(ROOT / "notebooks" / "02_prealloc_gather.ipynb", as_version=4)
    texts = [text for cell in nb.cells if cell.cell_type == "code" for text in shown(cell)]
    [in_trace] = [re.search(r"aten::copy_ +(\d+)", text)[1] for text in texts if text.startswith("name ")][:1]
    [counted] = [re.findall(r"'copy_': (\d+)", text) for text in texts if text.startswith("before:")]
    assert [in_trace, *counted] == ["64"] * 3


def test_the_steps_that_the_lesson_sets_side_by_side_are_of_one_batch():
    nb = nbformat.read(ROOT / "notebooks" / "02_prealloc_gather.ipynb", as_version=4)
    batches = [
        re.findall(r"(?:ready_batch\(\w+, model|copied\(\w+), (\[\d+\] \* 8)\)", cell.source) for cell in nb.cells
    ]
    assert {lengths for found in batches for lengths in found} == {"[40] * 8"}


def shown(cell) -> list[str]:
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
