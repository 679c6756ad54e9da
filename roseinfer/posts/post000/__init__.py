"""Post 000, "Performance": one command before and after the select-based append, and the ops of its two spans.

Before: the preallocated gather, with an append that cuts slices for every sequence (stage 02). After: one select a
layer (stage 03). Both are profiled, as the post's runs were; a race without the profiler stands beside.
"""

from __future__ import annotations

from roseinfer.bench.contenders import BLOCK_SIZE
from roseinfer.engine.config import EngineConfig

from ..data import post_facts
from ..posted_command import parsed
from ..report.content import NotRun, Report
from ..report.setting import Plan
from . import tables
from .run import AFTER, BEFORE, arguments, dtype_of, measure


def engines(plan: Plan) -> list[EngineConfig]:
    """One: both stages have the same sizes."""
    args = parsed(arguments(plan))
    # A prompt of one block at most, as a word is.
    blocks = -(-(args.max_new_tokens + BLOCK_SIZE) // BLOCK_SIZE)
    return [
        EngineConfig(
            model=args.hf_model_id,
            num_blocks=args.num_requests * blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=args.num_requests,
            dtype=dtype_of(plan),
            device=str(plan.device),
        )  # fmt: skip
    ]


def reproduce(plan: Plan) -> Report:
    """Raises ValueError for a model that is not found or does not fit."""
    measured = measure(plan)
    args, before = measured.args, measured.profiled[BEFORE][0]
    sections = [
        tables.command(measured), tables.ops_table(measured, "gather_after", BEFORE),
        tables.ops_table(measured, "append_before", BEFORE), tables.ops_table(measured, "append_after", AFTER),
        tables.spans(measured), tables.self_time(measured), tables.arithmetic(measured),
    ]  # fmt: skip
    arguments = {
        "model": args.hf_model_id, "dtype": dtype_of(plan), "before": BEFORE, "after": AFTER,
        "num_requests": args.num_requests, "max_batch_size": args.max_batch_size,
        "max_new_tokens": args.max_new_tokens, "decode_steps": len(before.steps),
        "repeats": len(measured.raced[BEFORE]),
    }  # fmt: skip
    return plan.report("000", arguments, sections, not_run(plan))


def not_run(plan: Plan) -> list[NotRun]:
    facts = post_facts("000")
    parts = [
        NotRun("the post's checkpoint", "its author's file: an untrained GPT-2 small, and so is random:gpt2"),
        NotRun(f"torch {facts['torch']}, which the post's slice counts belong to", "an environment with that version; "
               "the rule that explains the difference is in roseinfer/profiling/slicing.py"),
    ]  # fmt: skip
    if not plan.on_gpu:
        parts.append(NotRun("the device rows of the span table, and the gaps of the device", "an NVIDIA GPU"))
    return parts
