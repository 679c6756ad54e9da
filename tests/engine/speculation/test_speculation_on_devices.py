"""Drafts on a CPU, with the GPU's attention interpreted on a CPU, and with `pytest -m gpu` on a GPU."""

from __future__ import annotations

import pytest
import torch
from drafting import NGRAM, draft_model, drafting_engine
from oracles import model_of
from small_engines import run_out

from roseinfer.bench.ladder import mixed_prompts
from roseinfer.kernels.paged_triton import TritonAttention
from roseinfer.models import load_model
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence

pytestmark = pytest.mark.slow


def run(engine, prompts, max_tokens) -> list[list[int]]:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return [seq.output_ids for seq in run_out(engine, [Sequence(prompt, params) for prompt in prompts])]


@pytest.mark.parametrize("method", [lambda model: NGRAM, draft_model], ids=["ngram", "itself"])
def test_greedy_tokens_on_every_device(method, device):
    model = load_model("tiny", device=device, dtype=torch.float32)
    prompts = mixed_prompts(model, (1, 15, 16, 17, 40, 64))
    engine = drafting_engine(model, method(model), block_size=16, max_num_seqs=3)
    engine.warm_up()
    assert run(engine, prompts, 24) == reference_generate(model, prompts, 24)
    counts = engine.metrics
    assert counts.num_accepted and (method is not draft_model or counts.num_accepted == counts.num_drafted)


@pytest.mark.needs_triton
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_attention_of_a_gpu_takes_drafts_as_chunks(name):
    model = model_of(name)
    prompts = mixed_prompts(model, (5, 17))
    engine = drafting_engine(model, draft_model(model, 2), enforce_eager=True)
    for runner in (engine.runner, engine.speculation.proposer.runner):
        runner.attention = TritonAttention()
    assert run(engine, prompts, 5) == reference_generate(model, prompts, 5)
    assert engine.metrics.num_accepted == engine.metrics.num_drafted > 0
