"""Lesson 03: wrong answers to its exercises are told what is wrong, and unusual right ones pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from wrong_answers import assert_accepted, assert_refused, right_answers, right_cases, wrong_answers, wrong_cases

from course.teach.exercises.solutions import solution
from course.teach.lesson03.exercises import INDICES, describe_index
from roseinfer.profiling import count_ops
from roseinfer.profiling.slice_rule import slice_dispatches
from stages import SelectAppend

# 03.2


test_a_wrong_slice_rule = wrong_answers(
    "03.2", {"yes or no": (lambda index, shape, free: bool(index), "expected a number, got bool")}
)


def by_lists(index, shape, free):
    counted = [part for part, size in zip(list(index), list(shape), strict=False) if type(part) is slice]
    sizes = [size for part, size in zip(index, shape, strict=False) if type(part) is slice]
    colons = counted.count(slice(None, None, None))
    covered = sum(part in (slice(0, size), slice(None, size)) for part, size in zip(counted, sizes, strict=True))
    return len(counted) - covered - (colons if free else 0)


test_a_right_slice_rule = right_answers(
    "03.2", {"by lists": by_lists, "a tensor": lambda *case: torch.tensor([by_lists(*case)]).sum()}
)


@pytest.mark.parametrize(("index", "shape", "free"), INDICES, ids=[describe_index(*case) for case in INDICES])
def test_the_slice_rule_is_what_this_torch_does(index, shape, free):
    x = torch.zeros(shape)
    assert count_ops(lambda: x[index])["aten::slice"] == slice_dispatches(index, shape)
    assert solution("03.2")(index, shape, free) == slice_dispatches(index, shape, (2, 9) if free else (2, 8))


# 03.3


test_a_wrong_batch_of_the_post = wrong_answers(
    "03.3",
    {
        "too many sequences": ([4] * 16, "16 sequences make 384 copies per step; the post counts 192"),
        "a sequence too few": ([4] * 6 + [5], "7 sequences make 168 copies per step; the post counts 192"),
        "equal lengths": ([4] * 8, "these lengths make 960 slices, the post counts 1128; longest sequences: 8"),
        "two longest": (
            [4] * 6 + [5] * 2,
            "these lengths make 1104 slices, the post counts 1128; longest sequences: 2",
        ),
        "a block full": ([4] * 7 + [64], "expected a list of lengths from 1 to 63"),
        "a count": (8, "expected a list of lengths from 1 to 63, got 8"),
        "an empty batch": ([], "got an empty list, expected a length per sequence"),
        "one dimension too many": ([[4] * 7 + [5]], "expected a list of lengths from 1 to 63, got [["),
    },
)
test_a_right_batch_of_the_post = right_answers(
    "03.3",
    {"an array": np.array([4, 9, 4, 4, 4, 4, 4, 4]), "a tensor": torch.tensor([1, 1, 1, 1, 1, 1, 2, 1])},
)


# 03.4


class LongestPosition(SelectAppend):
    def positions(self, seqs):
        return [max(seq.num_cached_tokens for seq in seqs)] * len(seqs)


@wrong_cases(
    "03.4",
    {
        "equal lengths": ([[1, 2], [3, 4]], "all prompts have 2 tokens"),
        "one sequence": ([[1, 2, 3]], "a sequence alone is always the longest"),
        "one prompt, not a list of them": ([1, 2], "expected a list of prompts"),
        "no prompt": ([], "expected a list of prompts, each a list of token ids, got []"),
        "no sequence outgrows a block": (
            [[1] * 40, [2] * 3],
            "that gathers only the first block has stage 03's logits on these",
        ),
        "none crosses an edge": (
            [[1] * 70, [2] * 3],
            "that stores the first token of a new block in the block before it has",
        ),
        "a token the model has not": ([[1, 2, 3], [5000]], "token id 5000 is out of range"),
        "a prompt that does not fit": ([[1] * 190, [2]], "allowed: max_model_len=192"),
    },
)
def test_prompts_that_cannot_reveal_the_bug(small, answer, message):
    assert_refused("03.4", lambda: answer, message, buggy_stage=LongestPosition, model=small)


def test_prompts_that_reveal_nothing_because_there_is_no_bug(small):
    prompts = [[5] * 60, [7]]
    assert_refused(
        "03.4",
        lambda: prompts,
        "as its position has stage 03's logits on these",
        buggy_stage=SelectAppend,
        model=small,
    )
    assert_accepted("03.4", lambda: prompts, buggy_stage=LongestPosition, model=small)


@right_cases(
    "03.4",
    {
        "three prompts, arrays": [np.arange(1, 61), np.array([5]), np.array([5, 6])],
        "two equally long": [[5] * 64, [5, 6, 7], [8, 9, 10]],
    },
)
def test_right_prompts(small, answer):
    assert_accepted("03.4", lambda: answer, buggy_stage=LongestPosition, model=small)
