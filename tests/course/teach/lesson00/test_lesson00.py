"""Lesson 00: wrong answers to its exercises are told what is wrong, and unusual right ones pass."""

from __future__ import annotations

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams, Sequence
from stages import NaiveCat

# 00.3


def kv_bytes(c, n, width):
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * n * width


test_wrong_bytes = wrong_answers(
    "00.3",
    {
        "a token too few": (
            lambda c, n, width: kv_bytes(c, n - 1, width),
            "num_tokens=2, bytes_per_value=1: you return 16, expected 32",
        ),
        "printed": (lambda c, n, width: print(n), "got None: is a `return` missing?"),
    },
)
test_right_bytes = right_answers(
    "00.3",
    {
        "added up token by token": lambda c, n, width: sum(kv_bytes(c, 1, width) for _ in range(n)),
        "a tensor's own size": lambda c, n, width: (
            torch.empty(2, c.num_layers, c.num_kv_heads, n, c.head_dim, dtype=torch.int8).numel() * width
        ),
    },
)


# 00.1


def without(p, n):
    return sum(p + i for i in range(n))


test_wrong_tokens_computed = wrong_answers(
    "00.1",
    {
        "one number": (lambda p, n: p + n, "expected (without a cache, with a cache), got 2"),
        "right for short texts": (lambda p, n: (without(p, n), p + min(n, 32) - 1), "new_tokens=500: with a cache: "),
    },
)
test_right_tokens_computed = right_answers(
    "00.1",
    {
        "Gauss's sum": lambda p, n: (n * (2 * p + n - 1) / 2, p + n - 1),
        "an array": lambda p, n: np.array([np.arange(p, p + n).sum(), p + n - 1]),
    },
)


# 00.2


def without_a_cache(stage, prompt, max_tokens):
    ids = list(prompt)
    for _ in range(max_tokens):
        seq = Sequence(ids)
        ids.append(int(stage.prefill(seq).argmax()))
        stage.free(seq)
    return ids[len(prompt) :]


def loop(end):
    return solution("00.2", {"stage.free(seq)\n    return seq.output_ids": end}, Sequence=Sequence)


test_a_wrong_decode_loop = wrong_answers(
    "00.2",
    {
        "freed twice": (loop(end="stage.free(seq)\n    stage.free(seq)"), "never prefilled, or freed already"),
        "a prefill for every token": (without_a_cache, "calls of prefill: you return 2, expected 1"),
        "a step thrown away": (
            loop(end="stage.decode([seq])\n    stage.free(seq)\n    return seq.output_ids"),
            "calls of decode: you return 1, expected 0",
        ),
        "the caller's prompt changed": (
            loop(end="stage.free(seq)\n    prompt_ids += seq.output_ids\n    return seq.output_ids"),
            "you have changed what you were called with",
        ),
    },
    stage_class=NaiveCat,
    model="small",
)


def by_recursion(stage, prompt_ids, max_tokens):
    seq = Sequence(tuple(prompt_ids))

    def rest(logits, missing):
        seq.append(logits.topk(1).indices.item())
        return (seq.last_token_id, *rest(stage.decode([seq])[0], missing - 1)) if missing > 1 else (seq.last_token_id,)

    try:
        return rest(stage.prefill(seq), max_tokens)
    finally:
        stage.free(seq)


def with_the_courses_sampler(stage, prompt_ids, max_tokens):
    [seq] = begin(stage, [prompt_ids], SamplingParams())
    while len(seq) < len(prompt_ids) + max_tokens:
        decode_step(stage, [seq])
    stage.free(seq)
    return torch.tensor(seq.token_ids[len(prompt_ids) :])


test_a_right_decode_loop = right_answers(
    "00.2",
    {"a recursion, a tuple": by_recursion, "the course's own step, a tensor": with_the_courses_sampler},
    stage_class=NaiveCat,
    model="small",
)
