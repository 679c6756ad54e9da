"""Costs: what a step has to do, coefficients found again in steps that were made with them, and floors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.models import model_config
from roseinfer.profiling.data_sheets import data_sheet
from roseinfer.profiling.floors import decode_floor, prefill_floor, step_terms
from roseinfer.sequence import Sequence
from roseinfer.simulator import StepSample, StepWork, fit, floor_cost, work_of
from roseinfer.simulator.cost import TERMS, nonnegative_least_squares, terms_of

SPEC = "random:qwen2.5-0.5b"


def seqs_of(*shapes: tuple[int, int]) -> tuple[list[Sequence], list[int]]:
    """(cached, new) tokens of each."""
    seqs = [Sequence([1] * (cached + new)) for cached, new in shapes]
    for seq, (cached, _) in zip(seqs, shapes, strict=True):
        seq.num_cached_tokens = cached
    return seqs, [new for _, new in shapes]


@pytest.mark.parametrize(
    ("shapes", "work"),
    [
        ([(7, 1), (20, 1)], StepWork(2, 2, 0, 29, 0, 0)),
        ([(0, 3)], StepWork(1, 0, 3, 0, 3, 1 + 2 + 3)),
        ([(7, 1), (0, 3), (4, 2)], StepWork(3, 1, 5, 8, 9, 6 + 5 + 6)),
        ([(0, 1)], StepWork(1, 1, 0, 1, 0, 0)),
    ],
)
def test_the_work_of_a_step(shapes, work):
    assert work_of(*seqs_of(*shapes)) == work


def samples(host, device, noise=lambda i: 1.0) -> list[StepSample]:
    works = dict.fromkeys(
        work_of(*seqs_of(*[(context, 1)] * decodes, *[(cached, new)] * prompts))
        for decodes, context, prompts, cached, new in product((0, 1, 7), (5, 90), (0, 1, 3), (0, 30), (2, 50))
        if decodes or prompts
    )
    return [
        StepSample(w, noise(i) * float(np.dot(host, terms_of(w))), noise(i) * float(np.dot(device, terms_of(w))))
        for i, w in enumerate(works)
    ]


HOST, DEVICE = (2e-5, 1e-6, 0.0, 3e-8, 0.0, 0.0, 0.0, 0.0), (5e-4, 0.0, 6e-5, 4e-5, 7e-7, 2e-7, 1e-8, 3e-5)


def test_coefficients_are_found_again():
    cost = fit("made up", samples(HOST, DEVICE))
    assert cost.host == pytest.approx(HOST, abs=1e-12) and cost.device == pytest.approx(DEVICE, abs=1e-12)
    assert max(map(abs, cost.errors)) < 1e-9 and len(cost.to_dict()["samples"]) == len(cost.samples)
    work = StepWork(3, 1, 5, 8, 9, 17)
    assert cost.seconds(work) == pytest.approx((np.dot(HOST, terms_of(work)), np.dot(DEVICE, terms_of(work))))


def test_one_step_that_was_held_up_changes_nothing():
    made = samples(HOST, DEVICE)
    held_up = [StepSample(s.work, 90 * s.host, 90 * s.device) for s in made]
    assert fit("made up", [*made, *made, *held_up]).device == pytest.approx(DEVICE, abs=1e-12)


def test_errors_are_those_of_each_kind_of_step():
    made = samples(HOST, DEVICE, noise=lambda i: 1 + 0.2 * (-1) ** i)
    cost = fit("made up", made)
    kinds = {s.work: s.host + s.device for s in made}
    assert cost.errors == pytest.approx([sum(cost.seconds(work)) / seconds - 1 for work, seconds in kinds.items()])
    assert 0.05 < max(map(abs, cost.errors)) < 0.5


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), num_columns=st.integers(1, 5))
def test_least_squares_without_negatives(seed, num_columns):
    """At the best x, going up on any coefficient makes it no better, and going down only where that is above 0."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(12, num_columns)), rng.normal(size=12)
    x = np.array(nonnegative_least_squares(a, b))
    slope = a.T @ (a @ x - b)
    assert (x >= 0).all() and (slope > -1e-9).all() and abs(slope[x > 0]).max(initial=0) < 1e-9


def test_too_few_kinds_of_steps():
    with pytest.raises(ValueError, match=f"at least {len(TERMS)} kinds of steps to fit them, got 2"):
        fit("made up", samples(HOST, DEVICE)[:2] * 9)


@pytest.mark.parametrize("spec", ["random:tiny-llama", SPEC, "random:gpt2"])
def test_the_terms_of_a_step_are_those_of_the_floors(spec):
    config, dtype = model_config(spec), torch.float16
    terms = step_terms(config, dtype)
    decode, prefill = decode_floor(config, [9] * 3, dtype), prefill_floor(config, [9], dtype)
    assert terms.weight_bytes == decode.weight_bytes and terms.kv_bytes * 27 == decode.kv_bytes
    assert 3 * (terms.token_flops + terms.output_flops) + 27 * terms.pair_flops == decode.flops
    assert 9 * terms.token_flops + terms.output_flops + 45 * terms.pair_flops == prefill.flops
    assert terms.kv_bytes * 9 == prefill.kv_bytes


def test_a_floor_is_bytes_or_operations():
    cost, sheet = floor_cost("H200 SXM", SPEC, "bfloat16", host_seconds=0.25), data_sheet("H200 SXM")
    decode = decode_floor(model_config(SPEC), [100] * 8, torch.bfloat16)
    prefill = prefill_floor(model_config(SPEC), [4096], torch.bfloat16)
    assert cost.seconds(work_of(*seqs_of(*[(99, 1)] * 8))) == (
        0.25,
        (decode.weight_bytes + decode.kv_bytes) / sheet["read_bytes_per_s"],
    )
    assert cost.seconds(work_of(*seqs_of((0, 4096)))) == (0.25, prefill.flops / sheet["fp16_flops_per_s"])
    assert "FLOOR, not a measurement" in cost.about and "250 ms" in cost.about


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("A100", SPEC, "float16"), "gpu='A100' is not in roseinfer/data/gpus.json"),
        (("RTX 4090", SPEC, "float32"), "dtype='float32': the data sheet of RTX 4090 .* allowed: float16, bfloat16"),
        (("RTX 4090", SPEC, "float16", -1.0), "host_seconds must be a number of at least 0, got -1.0"),
    ],
)
def test_a_floor_that_nobody_knows(arguments, error):
    with pytest.raises(ValueError, match=error):
        floor_cost(*arguments)
