"""Decode steps by fused kernels: the reference's tokens on mixed batches, and how many launches a step takes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from oracles import assert_logits_close, model_of
from torch import nn
from torch.profiler import ProfilerActivity, profile

from roseinfer.bench.ladder import mixed_prompts
from roseinfer.drive import drive
from roseinfer.engine.batch import FEW_ROWS
from roseinfer.engine.engine import Engine
from roseinfer.engine.fused_step import ALIGNED, FusedStep, has_fused_step
from roseinfer.engine.runner import Runner
from roseinfer.kernels.triton_mode import INTERPRETER
from roseinfer.models import GPT2, load_model
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]


class Fused(Runner):
    """Decodes by fused kernels, on a CPU too."""

    def __init__(self, model, *args, **options):
        super().__init__(model, *args, **options)
        self.fused = FusedStep(model)

    def whole_step(self) -> None:
        return None


@pytest.mark.parametrize("spec", ["tiny", "random:tiny-llama", "random:tiny-qwen2", "random:tiny-qwen3"])
def test_tokens_are_the_references(spec, device):
    model = load_model(spec, device=device)
    prompts = mixed_prompts(model, (1, 15, 16, 17, 40))
    settings = {"num_blocks": 32, "block_size": 16, "max_num_seqs": 5, "enforce_eager": device == "cpu"}
    engine = Engine(model, make_runner=Fused, **settings)
    seqs = [Sequence(prompt, SamplingParams(max_tokens=4, ignore_eos=True)) for prompt in prompts]
    for seq in seqs:
        engine.add(seq)
    list(drive(engine))
    assert [seq.output_ids for seq in seqs] == reference_generate(model, prompts, 4)


@pytest.mark.parametrize(("name", "of_a_layer"), [("gpt2", 4), ("llama", 5)])
@pytest.mark.parametrize(("num_rows", "more"), [(FEW_ROWS, 0), (FEW_ROWS + 1, -1)])
@torch.inference_mode()
def test_launches_of_a_step_besides_attention(name, of_a_layer, num_rows, more):
    """The kernels here are counted: for more rows products are the library's, and norms and activation are three."""
    model = deepcopy(model_of(name)).to(torch.bfloat16)
    step, zeros = FusedStep(model), torch.zeros(num_rows, dtype=torch.int64)
    batch = SimpleNamespace(
        token_ids=zeros, positions=zeros, is_decode=True, sources=zeros - 1, last_tokens=torch.zeros_like(zeros)
    )
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        step(batch, lambda layer, q, k, v: q.clone())
    launches = sum(event.name == INTERPRETER for event in trace.events())
    assert launches == (of_a_layer + more) * model.config.num_layers + 3


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("is_decode", [True, False])
@torch.inference_mode()
def test_few_rows_and_many_give_the_models_logits(name, is_decode, device):
    """The vocabulary is one that no 64 divides, attention is any, and the model's output matrix stays where it is."""
    model = deepcopy(model_of(name)).to(device)
    odd = model.config.vocab_size - 11
    for output in {model.token_embedding, model.lm_head} - {None}:
        output.weight = nn.Parameter(output.weight[:odd].clone())
    model.config = replace(model.config, vocab_size=odd)
    group = model.config.num_heads // model.config.num_kv_heads
    positions = torch.tensor([0, 3, 9, 40, 7], device=device)

    def attend(layer, q, k, v):
        return q * k.repeat_interleave(group, 1) + v.repeat_interleave(group, 1)

    rows = torch.arange(5) if is_decode else torch.tensor([1, 4])
    wanted = model.logits(model(positions * 2, positions, attend))[rows.to(device)]
    batch = SimpleNamespace(
        token_ids=positions * 2,
        positions=positions,
        is_decode=is_decode,
        sample_rows=rows.to(device),
        sources=torch.full_like(positions, -1),
        last_tokens=torch.zeros_like(positions),
    )
    output = (model.lm_head or model.token_embedding).weight
    address = output.data_ptr()
    for few_rows in (0, FEW_ROWS) if device == "cpu" else (0,):
        step = FusedStep(model, few_rows)
        assert_logits_close(step.logits(batch, attend), wanted)
        assert len(step.output) % ALIGNED == 0
    assert output.data_ptr() == address


def test_a_model_that_computes_something_else_runs_by_modules():
    """A class of its own, a layer that adds to its product, and weights that are a cut of wider ones."""

    class Other(GPT2):
        pass

    class Added(nn.Linear):
        pass

    plain = load_model("tiny")
    assert has_fused_step(plain)
    assert not has_fused_step(Other(plain.config))
    added, cut = load_model("tiny"), load_model("tiny")
    added.h[1].mlp.c_fc = Added(8, 8)
    cut.wte.weight = nn.Parameter(torch.cat([cut.wte.weight] * 2, dim=1)[:, : cut.config.hidden_size])
    assert not has_fused_step(added) and not has_fused_step(cut)
