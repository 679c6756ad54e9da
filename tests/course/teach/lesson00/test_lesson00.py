"""Lesson 00: wrong answers to its exercises are told what is wrong, and unusual right ones pass."""

from __future__ import annotations

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.lesson00.exercises import SHAPE
from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams, Sequence
from stages import NaiveCat

# 00.3


def kv_bytes(c, n, width, tensors=2, heads=None, layers=None):
    return tensors * (layers or c.num_layers) * (heads or c.num_kv_heads) * c.head_dim * n * width


test_wrong_bytes = wrong_answers(
    "00.3",
    {
        "a token too few": (
            lambda c, n, width: kv_bytes(c, n - 1, width),
            "num_tokens=1, bytes_per_value=1: you return 0, expected 2",
        ),
        "printed": (lambda c, n, width: print(n), "got None: is a `return` missing?"),
    },
)


# 00.1


def without(p, n):
    return sum(p + i for i in range(n))


test_wrong_tokens_computed = wrong_answers(
    "00.1",
    {
        "one number": (lambda p, n: p + n, "expected (without a cache, with a cache), got 2"),
        "a square for a sum": (
            lambda p, n: (p * n + n * n // 2, p + n - 1),
            "prompt_len=1, new_tokens=2: without a cache: you return 4, expected 3",
        ),
        "right for short texts": (lambda p, n: (without(p, n), p + min(n, 32) - 1), "new_tokens=50: with a cache: "),
    },
)


# 00.2


def loop(stage, prompt, max_tokens):
    """Right, but for the blocks, which it keeps."""
    seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens))
    seq.append(int(stage.prefill(seq).argmax()))
    while len(seq.output_ids) < max_tokens:
        seq.append(int(stage.decode([seq])[0].argmax()))
    return seq


def ends(stage, seq):
    stage.free(seq)
    return seq


def one_too_many(stage, prompt, max_tokens):
    return ends(stage, loop(stage, prompt, max_tokens + 1)).output_ids


def without_append(stage, prompt, max_tokens):
    seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens))
    stage.prefill(seq)
    stage.decode([seq])


def without_the_prefills_logits(stage, prompt, max_tokens):
    seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens + 1))
    stage.prefill(seq)
    seq.append(0)
    for _ in range(max_tokens):
        seq.append(int(stage.decode([seq])[0].argmax()))
    return ends(stage, seq).output_ids[1:]


def without_a_cache(stage, prompt, max_tokens):
    ids = list(prompt)
    for _ in range(max_tokens):
        seq = Sequence(ids)
        ids.append(int(stage.prefill(seq).argmax()))
        stage.free(seq)
    return ids[len(prompt) :]


def a_step_thrown_away(stage, prompt, max_tokens):
    seq = loop(stage, prompt, max_tokens)
    stage.decode([seq])
    return ends(stage, seq).output_ids


def prompt_changed(stage, prompt, max_tokens):
    new = ends(stage, loop(stage, prompt, max_tokens)).output_ids
    prompt += new
    return new


def as_if_empty(stage, prompt, max_tokens):
    """Makes every token from the first new one alone."""
    [first] = ends(stage, loop(stage, prompt, 1)).output_ids
    return [first] * max_tokens


def from_the_last_token(stage, prompt, max_tokens):
    return ends(stage, loop(stage, prompt[-1:], max_tokens)).output_ids


def least_likely(stage, prompt, max_tokens):
    seq = Sequence(prompt, SamplingParams(max_tokens=max_tokens))
    logits = stage.prefill(seq)
    while len(seq.output_ids) < max_tokens:
        seq.append(int((-logits).argmax()))
        if len(seq.output_ids) < max_tokens:
            logits = stage.decode([seq])
    return ends(stage, seq).output_ids


test_a_wrong_decode_loop = wrong_answers(
    "00.2",
    {
        "blocks kept": (lambda *a: loop(*a).output_ids, "1 block was not given back"),
        "prompt returned too": (
            lambda s, *a: ends(s, loop(s, *a)).token_ids,
            "max_tokens=1: token 0 is 3, expected 23: only the new",
        ),
        "the sequence returned": (lambda s, *a: ends(s, loop(s, *a)), "expected a list of token ids, got Sequence"),
        "one token too many": (one_too_many, "2 tokens, expected 1; the first 1 are right: the prefill"),
        "no append": (without_append, "exactly one new token"),
        "the prefill's logits lost": (without_the_prefills_logits, "max_tokens=2: token 1 is 23, expected 14"),
        "one token for all": (as_if_empty, "max_tokens=2: token 1 is 23, expected 14"),
        "the prompt's last token alone": (from_the_last_token, "token 0 is "),
        "the least likely": (least_likely, "prompt [3], max_tokens=1: token 0 is "),
        "freed twice": (lambda s, *a: s.free(ends(s, loop(s, *a))), "never prefilled, or freed already"),
        "a prefill for every token": (without_a_cache, "right tokens, but 1 prefill too many (2, the budget is 1)"),
        "a step thrown away": (a_step_thrown_away, "right tokens, but 1 decode too many (1, the budget is 0)"),
        "the caller's prompt changed": (prompt_changed, "prompt_ids has changed"),
    },
    stage_class=NaiveCat,
    model="small",
)


# Right answers.


test_right_bytes = right_answers(
    "00.3",
    {
        "added up token by token": lambda c, n, width: sum(kv_bytes(c, 1, width) for _ in range(n)),
        "a tensor's own size": lambda c, n, width: (
            torch.empty(2, c.num_layers, c.num_kv_heads, n, c.head_dim, dtype=torch.int8).numel() * width
        ),
    },
)


test_right_tokens_computed = right_answers(
    "00.1",
    {
        "Gauss's sum": lambda p, n: (n * (2 * p + n - 1) / 2, p + n - 1),
        "an array": lambda p, n: np.array([np.arange(p, p + n).sum(), p + n - 1]),
    },
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
    {
        "a recursion, a tuple": by_recursion,
        "the course's own step, a tensor": with_the_courses_sampler,
    },
    stage_class=NaiveCat,
    model="small",
)


def test_what_right_answers_are_made_from_is_the_lessons_number():
    assert kv_bytes(SHAPE, 1, 4) == 73728
