"""What the tests of the GPU report share: a course and plans that a CPU runs in seconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from roseinfer.bench.gpu_report import Course, KernelShape, LadderShape, Plan, Size, TimedShape
from stages import PreallocGather, SelectAppend
from stages.s07_triton_paged import paged_attention_reference, paged_attention_triton

CPU = torch.device("cpu")
TINY = "random:tiny-llama"
COURSE = Course([PreallocGather, SelectAppend], paged_attention_reference, paged_attention_triton)
FLAT = "mixed, 3 x 1 heads of 32, blocks of 1"
PLAN = Plan(
    seconds=3600, kernel_check_seconds=3600,
    kernel_shapes=(KernelShape(32, 2, 16),), flat_check_seconds=3600, flat_cases=(FLAT,),
    timed_shapes=(TimedShape(2, 16, 1, 2, 16, 16, "float32"),),
    token_check_seconds=3600, checked_models=(TINY,), checked_prompt_lens=(1, 15, 17), checked_new_tokens=3,
    graph_check_models=(TINY,), graph_check_seqs=3, launch_batch_sizes=(2,), launch_steps=2,
    trace_model=TINY, trace_dtype="float32", trace_batch_size=2, trace_steps=2, trace_bytes=400_000,
    ladders=(LadderShape(TINY, "float32", 2), LadderShape(TINY, "bfloat16", 1)), prompt_len=4,
    ladder_sizes=(Size(5, 1), Size(3, 1)), static_cache_seconds=0, dtypes=("float32", "bfloat16"),
)  # fmt: skip
# Only traces are left.
NO_PARTS = replace(
    PLAN, kernel_shapes=(), flat_cases=(), timed_shapes=(), checked_models=(), graph_check_models=(),
    launch_batch_sizes=(), ladders=(), dtypes=(), trace_steps=1,
)  # fmt: skip


class ForgetsTheLastToken(PreallocGather):
    """Positions one too low: right shapes, wrong tokens."""

    def positions(self, seqs):
        return [seq.num_cached_tokens - 1 for seq in seqs]
