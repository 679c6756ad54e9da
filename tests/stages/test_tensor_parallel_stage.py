"""Stage 21's two ranks: what each has, what they share, and how the second one ends."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
import torch
from fresh_python import printed_by
from oracles import assert_right, prompts_of, small_llama, small_model

from roseinfer.generate import begin, decode_step, generate
from roseinfer.sequence import SamplingParams
from stages import TensorParallel
from stages import s21_tensor_parallel as stage_21

sys.path.append(str(Path(__file__).parents[1] / "parallel"))
from processes import wait_until_gone

pytestmark = pytest.mark.slow
PARAMS = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)


def stage_of(model, **sizes):
    return TensorParallel(model, **{"num_blocks": 24, "block_size": 8} | sizes)


def test_a_rank_has_half_of_the_heads_and_of_the_pool():
    model = small_llama("qwen2")
    stage = stage_of(model)
    c = model.config
    assert stage.pool.shape[3] * 2 == c.num_kv_heads and stage.config.num_heads * 2 == c.num_heads
    assert stage.config.hidden_size == c.hidden_size


@pytest.mark.parametrize("make", [small_model, lambda: small_llama("llama", o_bias=True, qkv_bias=True)])
def test_parts_of_both_ranks_are_the_weights_once(make):
    model = make()
    parts = [dict(stage_21.part_of(model, rank).named_parameters()) for rank in range(2)]
    for name, weight in model.named_parameters():
        first, second = (part[name] for part in parts)
        if first.shape == weight.shape:
            assert torch.equal(first, weight) and (torch.equal(second, weight) or not second.any())
        else:
            both = torch.cat([first.flatten(), second.flatten()])
            assert torch.equal(both.sort().values, weight.flatten().sort().values)


def test_stages_share_one_second_rank_and_run_in_turns():
    models = small_model(), small_llama("llama")
    stages = [stage_of(model) for model in models]
    assert stages[0].other is stages[1].other
    held = [begin(stage, prompts_of((3, 12), 97), PARAMS) for stage in stages]
    for _ in range(8):
        for stage, seqs in zip(stages, held, strict=True):
            decode_step(stage, seqs)
    for model, seqs in zip(models, held, strict=True):
        assert_right(model, seqs)


def test_the_part_of_a_stage_that_is_gone_is_dropped_with_the_next_step():
    model = small_model()
    kept, gone = stage_of(model), stage_of(model)
    key, other = gone.key, gone.other
    del gone
    gc.collect()
    assert key in other.unused
    generate(kept, [[1, 2, 3]], PARAMS)
    assert other.unused == []


def test_a_step_that_fails_between_two_sums_is_made_again():
    model = small_model()
    stage = stage_of(model)
    seqs = begin(stage, prompts_of((3, 12), 97), PARAMS)
    hook = stage.model.h[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decode_step(stage, seqs)
    hook.remove()
    for _ in range(8):
        decode_step(stage, seqs)
    assert_right(model, seqs)


def test_a_model_whose_heads_do_not_divide_stays_whole():
    model = small_model(num_kv_heads=1)
    stage = stage_of(model)
    assert stage.other is None and stage.model is model


def test_threads_are_as_before_after_a_step():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        generate(stage_of(small_model()), [[1, 2, 3]], PARAMS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.nightly
def test_the_second_rank_ends_with_the_first_one():
    code = """
from course.contract.small_models import small_model
from stages import TensorParallel
from pathlib import Path
import os
stage = TensorParallel(small_model(), num_blocks=4)
tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
print(*[child for task in tasks for child in (task / "children").read_text().split()])
"""
    [child] = printed_by(code).split()
    assert int(child) != os.getpid()
    wait_until_gone(int(child))
