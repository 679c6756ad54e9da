"""Stage 18: a decode step as one compiled function gives what the operations of stage 17 give."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from checked_stages import LENGTHS, assert_decodes_as, running
from oracles import prompts_of, small_llama, small_model

from roseinfer.bench.ladder import ladder
from roseinfer.bench.settings import Ladder
from roseinfer.engine.as_stage import EngineStage
from roseinfer.generate import decode_step, generate
from roseinfer.models import load_model
from roseinfer.sequence import SamplingParams
from stages import OneKernel, Policies


def test_a_step_is_one_operation_and_has_no_padding():
    stage, seqs = running(OneKernel, small_model())
    decode_step(stage, seqs)
    assert stage.graphs[5].operations == ["run_kernel"]
    before = stage.pool.clone().nan_to_num_(7.0)
    decode_step(stage, seqs)
    changed = (stage.pool.nan_to_num(7.0) != before).any(dim=(0, 1, 3, 5)).flatten().nonzero().flatten().tolist()
    assert changed == sorted(stage.inputs_on_host["slot_mapping"][:5].tolist())


@pytest.mark.parametrize("make", [small_model, lambda: load_model("tiny", device="cpu")], ids=["small", "tiny"])
def test_logits_and_the_pool_are_those_of_stage_17(make):
    assert_decodes_as(OneKernel, Policies, make, (5, 2, 3, 1, 5))


def test_a_row_is_the_same_to_the_bit_in_every_batch():
    alone, together = [], []
    for stage_class, size in ((OneKernel, 1), (OneKernel, 5)):
        stage, seqs = running(stage_class, small_model())
        with torch.inference_mode():
            (together if size == 5 else alone).append(stage.decode(seqs[:size])[0])
    assert torch.equal(alone[0], together[0])


def test_one_compilation_serves_models_of_any_size():
    from stages.s18_one_kernel import decode_kernel

    generate(OneKernel(small_model(), num_blocks=4), [[1, 2]], SamplingParams(max_tokens=2))
    generate(OneKernel(load_model("tiny", device="cpu"), num_blocks=4), [[1, 2]], SamplingParams(max_tokens=2))
    assert len(decode_kernel.signatures) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        small_model(num_kv_heads=2),
        small_llama("llama"),
        deepcopy(small_model()).to(torch.bfloat16),
    ],
    ids=["2 KV heads", "llama", "bfloat16"],
)
def test_any_other_model_runs_as_in_stage_17(model):
    stages = [stage_class(model, num_blocks=40) for stage_class in (OneKernel, Policies)]
    assert stages[0].weights is None and stages[0].buckets == stages[1].buckets
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    prompts = prompts_of(LENGTHS, model.config.vocab_size)
    ours, theirs = ([seq.output_ids for seq in generate(stage, prompts, params)] for stage in stages)
    assert ours == theirs


@pytest.mark.parametrize("stage, has_own", [(Policies, True), (OneKernel, False), (EngineStage, False)])
def test_a_race_times_no_products_of_a_step_that_is_one_function(tiny, stage, has_own):
    result = ladder([stage], tiny, Ladder(batch_size=1, prompt_len=3, max_new_tokens=4, repeats=1, with_hf=False))
    assert (result.rows[0]["products_seconds"] is not None) == has_own
    assert (result.columns["products ms"] != [None]) == has_own
    assert "products ms" in result.frame
