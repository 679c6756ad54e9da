"""Steps that are filled up to shapes: on a CPU by a GPU's kernels, interpreted; with `pytest -m gpu` as its graphs."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from oracles import model_of

from roseinfer.bench.ladder import mixed_prompts
from roseinfer.engine.engine import Engine
from roseinfer.engine.fused_step import FusedStep, has_fused_step
from roseinfer.engine.runner import Runner
from roseinfer.engine.step_graphs import StepGraphs
from roseinfer.kernels.paged_triton import TritonAttention
from roseinfer.reference import reference_generate
from roseinfer.sequence import SamplingParams, Sequence

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]


class AsOnAGPU(Runner):
    """Fills steps up and computes them by the GPU's kernels. A CPU captures none: interpreted kernels are no graph."""

    def __init__(self, model, blocks, *others):
        super().__init__(model, blocks, *others)
        self.attention = TritonAttention(in_one_launch=True)
        self.fused = FusedStep(model) if has_fused_step(model) else None
        if model.device.type == "cpu":
            self.graphs = StepGraphs(self.compute, self.inputs, blocks, model.device)
            self.graphs.can_capture = False

    def whole_step(self) -> None:
        return None


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", {"speculative": {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}}),
        ("llama", {"async_scheduling": True}),
    ],
    ids=["drafts", "one behind"],
)
def test_padding_changes_no_token(name, settings, device):
    """Prompts and chunks beside decodes, drafts of all lengths, and NaN in every block that is free."""
    model = deepcopy(model_of(name)).to(device)
    engine = Engine(model, make_runner=AsOnAGPU, num_blocks=32, block_size=8, max_num_seqs=2, **settings)
    if engine.speculation:
        engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
    shapes, compute = [], engine.runner.graphs.compute
    engine.runner.graphs.compute = lambda batch: (shapes.append(batch.shape), compute(batch))[1]
    prompts = mixed_prompts(model, (5, 20, 1))
    seqs = [Sequence(prompt, SamplingParams(max_tokens=4, ignore_eos=True)) for prompt in prompts]
    for seq in seqs:
        engine.add(seq)
    while engine.has_work:
        engine.pool.memory[:, :, [*engine.blocks.pool.free, engine.pool.dummy_block]] = torch.nan
        engine.step()
    assert [seq.output_ids for seq in seqs] == reference_generate(model, prompts, 4)
    kinds = {min(shape.max_query_len, 64) for shape in shapes}
    assert {*shapes} <= {*engine.runner.graphs.sizes} and kinds >= ({4, 64} if engine.speculation else {1, 64})
