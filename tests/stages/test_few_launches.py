"""Stage 23: a decode step with a launch for each product gives what the operations of stage 13 give."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from checked_stages import assert_decodes_as, running
from oracles import small_llama, small_model

from roseinfer.generate import decode_step
from roseinfer.kernels import triton_mode
from stages import FewLaunches, Graphs
from stages.s23_few_launches import program_shape

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


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
    assert_decodes_as(FewLaunches, Graphs, small_model, (5, 2, 1))


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
