"""Lesson 02: wrong answers to its exercises are told what is wrong, and unusual right ones pass."""

from __future__ import annotations

import re

import nbformat
import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.paths import ROOT

# 02.3


def kv_bytes(c, n, width):
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * n * width


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
    },
)
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


# 02.1


def joined(blocks, n):
    return torch.cat(blocks, dim=1)[:, :n]


def gathering(changes):
    return solution("02.1", changes)


def token_by_token(blocks, n, out):
    for token in range(n):
        out[:, token] = blocks[token // 64][:, token % 64]


def to_the_name(blocks, n, out):
    out = joined(blocks, n)
    assert out.size(1) == n


def cat_then_copy(blocks, n, out):
    out[:, :n].copy_(joined(blocks, n))


def zeroed_then_added(blocks, n, out):
    for i, block in enumerate(blocks):
        row = out[:, 64 * i : min(64 * i + 64, n)]
        row.zero_().add_(block[:, : row.size(1)])


BUDGET = ", the budget is 1: write each block into out once, and to no other tensor"

test_a_wrong_gather_into_a_row = wrong_answers(
    "02.1",
    {
        "the name alone": (to_the_name, "out [2, 26, 2]: out was not changed: write into it with out[...] = ..."),
        "as long as out": (
            lambda b, n, out: gathering({})(b, min(out.size(1), 64 * len(b)), out),
            "out[:, 1:] was overwritten: it is padding",
        ),
        "cat, then copy": (cat_then_copy, "bytes written: "),
        "token by token": (
            token_by_token,
            f"num_tokens=6, 1 × [2, 64, 2] in float32, out [2, 30, 2]: writes into out: 6{BUDGET}",
        ),
        "zeroed, then added": (zeroed_then_added, f"writes into out: 2{BUDGET}"),
        "the cache cut": (
            gathering({"out[:, start:end] = ": "blocks[i] = block[:, : end - start]; out[:, start:end] = "}),
            "you have changed what you were called with",
        ),
        "the row returned": (
            gathering({"= block[:, : end - start]": "= block[:, : end - start]\n    return out"}),
            "you return a Tensor: the caller has out, return nothing",
        ),
        "token by token, unseen by torch": (
            lambda blocks, n, out: token_by_token([block.numpy() for block in blocks], n, out.numpy()),
            "writes into out: none by torch: write to out itself, not through NumPy",
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
    {"the last block first": last_block_first, "through its transpose": through_its_transpose},
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
