"""Stage 23: a decode step with a launch for each product gives what the operations of stage 13 give."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from oracles import assert_logits_close, assert_right, prompts_of, small_llama, small_model

from roseinfer.generate import begin, decode_step, generate
from roseinfer.kernels import triton_mode
from roseinfer.reference import hf_generate, reference_generate
from roseinfer.sequence import SamplingParams
from stages import FewLaunches, Graphs
from stages.s23_few_launches import program_shape

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]
LENGTHS = (5, 1, 13, 8, 30)


def running(stage_class, model, **sizes):
    """A batch of mixed lengths over a pool of NaN, which would spread if a slot without a token were read."""
    stage = stage_class(model, num_blocks=40, block_size=8, **sizes)
    stage.pool.fill_(torch.nan)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    return stage, begin(stage, prompts_of(LENGTHS, model.config.vocab_size), params)


def test_a_layer_is_four_products_and_attention():
    stage, seqs = running(FewLaunches, small_model())
    decode_step(stage, seqs)
    [graph] = stage.graphs.values()
    counts = Counter(graph.operations)
    num_layers = stage.config.num_layers
    assert counts["fused_linear"] == 4 * num_layers + 1 and counts["paged_attention_numba"] == num_layers
    assert not {"aten::layer_norm", "aten::gelu", "aten::linear", "mkldnn::_linear_pointwise"} & set(counts)
    assert counts["aten::add"] == 1, "token and position"


def test_logits_and_the_pool_are_those_of_stage_13():
    (ours, our_seqs), (theirs, their_seqs) = (running(cls, small_model()) for cls in (FewLaunches, Graphs))
    with torch.inference_mode():
        for size in (5, 2, 1):
            logits, wanted = ours.decode(our_seqs[:size]), theirs.decode(their_seqs[:size])
            assert_logits_close(logits, wanted)
            for seqs in (our_seqs, their_seqs):
                for seq, row in zip(seqs[:size], wanted, strict=False):
                    seq.append(int(row.argmax()))
    torch.testing.assert_close(
        ours.pool[:, :, :40], theirs.pool[:, :, :40], rtol=1e-4, atol=1e-4, equal_nan=True
    )  # without the block of padding rows


def test_tokens_are_those_of_both_oracles():
    model = small_model()
    stage = FewLaunches(model, num_blocks=40, block_size=8)
    seqs = generate(stage, prompts_of(LENGTHS, 97), SamplingParams(max_tokens=9, ignore_eos=True))
    assert_right(model, seqs, reference_generate, hf_generate)


def test_another_model_runs_as_in_stage_13():
    graphs = []
    for stage_class in (FewLaunches, Graphs):
        stage, seqs = running(stage_class, small_llama("llama"))
        decode_step(stage, seqs)
        graphs += stage.graphs.values()
    assert graphs[0].operations == graphs[1].operations


def test_without_triton_the_stage_says_so(monkeypatch):
    monkeypatch.setattr(triton_mode, "unavailable", lambda *device: "Triton is not installed")
    with pytest.raises(triton_mode.TritonUnavailable, match="Triton is not installed"):
        FewLaunches(small_model(), num_blocks=4)
    assert FewLaunches.why_untimed(torch.device("cpu")) == "Triton is not installed"


@pytest.mark.parametrize("num_rows", [1, 16, 17, 64, 200])
@pytest.mark.parametrize("interpreted", [True, False])
def test_tiles_are_powers_of_two_that_a_tensor_core_can_multiply(num_rows, interpreted):
    for num_out, width in ((50257, 768), (1, 1), (2304, 768), (768, 3072)):
        shape = program_shape(num_rows, num_out, width, interpreted)
        assert all(side >= 16 and side & (side - 1) == 0 for side in shape.values())
        assert shape["COLUMNS"] * shape["CHUNK"] <= 2**20, "the most values of a tile"
