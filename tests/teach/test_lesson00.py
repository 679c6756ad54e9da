"""Lesson 00: wrong answers to its exercises are told what is wrong, and what they are made from is right."""

from __future__ import annotations

from wrong_answers import assert_refused, wrong_answers

from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.teach import check
from roseinfer.teach.exercises.lesson00 import SHAPE
from stages import NaiveCat

# 00.1


def kv_bytes(c, n, width, tensors=2, heads=None, layers=None):
    return tensors * (layers or c.num_layers) * (heads or c.num_kv_heads) * c.head_dim * n * width


@wrong_answers(
    "00.1",
    {
        "K without V": (lambda c, n, width: kv_bytes(c, n, width, tensors=1), "K and V are both kept"),
        "query heads": (lambda c, n, width: kv_bytes(c, n, width, heads=c.num_heads), "query heads are not cached"),
        "hidden_size": (lambda c, n, w: 2 * c.num_layers * c.hidden_size * n * w, "query heads are not cached"),
        "values for bytes": (lambda c, n, width: kv_bytes(c, n, 1), "those are values, not bytes"),
        "bits for bytes": (lambda c, n, width: kv_bytes(c, n, 8 * width), "those are bits"),
        "one layer": (lambda c, n, width: kv_bytes(c, n, width, layers=1), "that is one layer"),
        "one head": (lambda c, n, width: kv_bytes(c, n, width, heads=1), "each of num_kv_heads keeps its own"),
        "one token": (lambda c, n, width: kv_bytes(c, 1, width), "num_tokens of them are cached"),
        "a token too few": (lambda c, n, width: kv_bytes(c, n - 1, width), "1 tokens, 4 bytes a value: 0 is too low"),
        "printed": (lambda c, n, width: print(n), "is a `return` missing?"),
    },
)
def test_wrong_bytes(answer, message):
    assert_refused("00.1", answer, message)


# 00.2


def without(p, n):
    return sum(p + i for i in range(n))


@wrong_answers(
    "00.2",
    {
        "the wrong way round": (lambda p, n: (p + n - 1, without(p, n)), "the wrong way round"),
        "one number": (lambda p, n: p + n, "expected a pair"),
        "the last token computed": (lambda p, n: (without(p, n), p + n), "with a cache: 2: the last token is made"),
        "no prefill": (lambda p, n: (without(p, n), n), "4, new_tokens=3, with a cache: 3: the prompt has to be"),
        "the prompt alone": (lambda p, n: (without(p, n), p), "with a cache: 4: each token after the first costs"),
        "the prompt again and again": (lambda p, n: (p * n, p + n - 1), "without a cache: 12: the text grows"),
        "steps from 1": (lambda p, n: (without(p + 1, n), p + n - 1), "2: the first step computes the prompt alone"),
        "no first step": (lambda p, n: (without(p, n) - p, p + n - 1), "0: the first token costs a pass over"),
    },
)
def test_wrong_tokens_computed(answer, message):
    assert_refused("00.2", answer, message)


# 00.3


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


@wrong_answers(
    "00.3",
    {
        "blocks kept": (lambda *a: loop(*a).output_ids, "1 blocks were not given back"),
        "prompt returned too": (lambda s, *a: ends(s, loop(s, *a)).token_ids, "the prompt is part of what you return"),
        "the sequence returned": (lambda s, *a: ends(s, loop(s, *a)), "expected a list of token ids, got Sequence"),
        "one token too many": (one_too_many, "max_tokens=1, but 2 tokens came back"),
        "no append": (without_append, "exactly one new token"),
        "the prefill's logits lost": (without_the_prefills_logits, "max_tokens=1: token 0 is"),
        "freed twice": (lambda s, *a: s.free(ends(s, loop(s, *a))), "never prefilled, or freed already"),
        "a prefill for every token": (without_a_cache, "right tokens, but 8 prefill too many (9, the budget is 1)"),
        "a step thrown away": (a_step_thrown_away, "right tokens, but 1 decode too many (1, the budget is 0)"),
        "the caller's prompt changed": (prompt_changed, "prompt_ids has changed"),
    },
)
def test_a_wrong_decode_loop(small, answer, message):
    assert_refused("00.3", answer, message, stage_class=NaiveCat, model=small)


def test_the_right_answers_that_wrong_ones_are_made_from(small):
    assert check("00.1", kv_bytes) and kv_bytes(SHAPE, 1, 4) == 73728
    assert check("00.2", lambda p, n: (without(p, n), p + n - 1))
    assert check("00.3", lambda s, *a: ends(s, loop(s, *a)).output_ids, stage_class=NaiveCat, model=small)
