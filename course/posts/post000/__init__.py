"""Post 000, "Performance": one command before and after the select-based append, and the ops of its two spans.

Before: the preallocated gather, with an append that cuts slices for every sequence (stage 02). After: one select a
layer (stage 03). Both are profiled, as the post's runs were; a race without the profiler stands beside them.
"""

from __future__ import annotations

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.profiling.slice_rule import COLON_IS_FREE_FROM, torch_version

from ..data import post_facts
from ..posted_command import parsed
from ..report.content import NotRun, PostReport
from ..report.setting import Setting
from . import tables
from .run import AFTER, BEFORE, arguments, measure


def engines(setting: Setting) -> list[PlannedEngine]:
    """Plan one engine, as both stages have the same sizes. A prompt is one word, and has at most one block."""
    args = parsed(arguments(setting))
    return [setting.engine(args.hf_model_id, args.num_requests, BLOCK_SIZE + args.max_new_tokens)]


def reproduce(setting: Setting) -> PostReport:
    """Reproduce the post. Raises ValueError for a model that is not found or does not fit."""
    measured = measure(setting)
    args, before = measured.args, measured.profiled[BEFORE][0]
    sections = [
        tables.command(measured),
        tables.ops_table(measured, "gather_after", BEFORE),
        tables.ops_table(measured, "append_before", BEFORE),
        tables.ops_table(measured, "append_after", AFTER),
        tables.spans(measured),
        tables.self_time(measured),
        tables.arithmetic(measured),
    ]
    arguments = {
        "model": args.hf_model_id,
        "dtype": setting.dtype,
        "before": BEFORE,
        "after": AFTER,
        "num_requests": args.num_requests,
        "max_batch_size": args.max_batch_size,
        "max_new_tokens": args.max_new_tokens,
        "decode_steps": len(before.steps),
        "repeats": len(measured.raced[BEFORE]),
    }
    return setting.report("000", arguments, sections, not_run(setting))


def not_run(setting: Setting) -> list[NotRun]:
    facts = post_facts("000")
    parts = [
        NotRun("the post's checkpoint", "its author's file, by its name an untrained GPT-2 small: so is random:gpt2"),
    ]
    if torch_version() >= COLON_IS_FREE_FROM:
        needs = "an environment with such a version; the rule that explains the difference is in "
        torch_then = f"torch {facts['torch']}, which the post's slice counts belong to"
        parts.append(NotRun(torch_then, f"{needs}roseinfer/profiling/slice_rule.py"))
    if setting.quick:
        parts.append(NotRun("what the change gains: a single run shows nothing", "the command without --quick"))
    if not setting.on_gpu:
        what = "the device rows of the span table, and the gaps of the device that the post's picture shows"
        parts.append(NotRun(what, "an NVIDIA GPU; the post does not name its own"))
    return parts
