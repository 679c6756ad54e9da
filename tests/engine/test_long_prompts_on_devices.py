"""Long prompts of which the pool holds nothing, and what the engine makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from oracles import model_on, prompts_of

from roseinfer.engine import batch as batches
from roseinfer.engine import runner as runners
from roseinfer.engine.batch import LONG_PROMPT, whole_prompts
from roseinfer.engine.engine import Engine
from roseinfer.engine.step import Step
from roseinfer.kernels.paged_triton import TritonAttention
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence

NEW = LONG_PROMPT + 3


@pytest.mark.parametrize(
    ("num_new", "launched", "whole"),
    [
        ([1, 1], [5, NEW], ()),
        ([NEW], [0], (NEW,)),
        ([1, 7, LONG_PROMPT, NEW], [9, 0, 0, 0], (LONG_PROMPT, NEW)),
        ([NEW, NEW, NEW], [0, 16, 0], (NEW,)),
        ([NEW, LONG_PROMPT - 1], [0, 0], ()),
        ([1, NEW], [9, 1], ()),
    ],
)
def test_whole_prompts_are_the_last_long_ones_that_see_no_other_tokens(num_new, launched, whole):
    assert whole_prompts(num_new, launched) == whole


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, ...]]:
    """Lengths of the whole prompts of each call of SDPA's layers; prompts of 8 tokens are long, on any device."""
    from roseinfer.kernels import whole_prompts as kernels

    found, attend = [], kernels.attention_with_whole_prompts

    def counted(attention, lengths, *tensors):
        found.append(lengths)
        return attend(attention, lengths, *tensors)

    monkeypatch.setattr(kernels, "attention_with_whole_prompts", counted)
    monkeypatch.setattr(batches, "LONG_PROMPT", 8)
    monkeypatch.setattr(runners, "has_flash_attention", lambda device, dtype, head_dim: True)
    return found


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tokens_are_the_references(calls, name, device):
    """Whole prompts alone, several in a step, beside decodes, and the first chunk of one that is longer than a step."""
    model = model_on(name, device)
    prompts = prompts_of((5, 9, 11, 30, 12), model.config.vocab_size)
    settings = {"num_blocks": 32, "block_size": 8, "max_num_seqs": 4, "max_num_batched_tokens": 24}
    engine = Engine(model, enforce_eager=True, **settings)
    seqs = [Sequence(prompt, SamplingParams(max_tokens=5, ignore_eos=True)) for prompt in prompts]
    for seq in seqs:
        engine.add(seq)
    while engine.has_work:
        engine.step()
    assert [seq.output_ids for seq in seqs] == reference_generate(model, prompts, 5)
    steps = calls[:: model.config.num_layers]
    assert sum(map(len, steps)) == 4 and any(len(lengths) > 1 for lengths in steps)


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.inference_mode()
def test_logits_are_those_of_the_engines_own_kernels(calls, name, device):
    model = model_on(name, device)
    engine = Engine(model, enforce_eager=True, num_blocks=32, block_size=8, max_num_seqs=4)
    engine.runner.attention = TritonAttention(in_one_launch=True)
    seqs = [Sequence(prompt, SamplingParams()) for prompt in prompts_of((3, 20, 15), model.config.vocab_size)]
    engine.blocks.reserve({seq.seq_id: len(seq) for seq in seqs})
    batch = engine.runner.prepare(Step(seqs, [len(seq) for seq in seqs]))
    assert batch.whole_prompts == (20, 15)
    logits, tokens = engine.runner.compute(batch)
    logits = logits.clone()
    assert calls == [(20, 15)] * model.config.num_layers
    wanted, wanted_tokens = engine.runner.compute(replace(batch, whole_prompts=()))
    assert torch.equal(tokens, wanted_tokens) and torch.allclose(logits, wanted, atol=1e-4, rtol=1e-4)
    assert calls == [(20, 15)] * model.config.num_layers
