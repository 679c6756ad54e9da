"""Post 000, "Performance": one command before and after the select-based append, and the ops of its two spans.

Before: the preallocated gather, with an append that cuts slices for every sequence (stage 02). After: one select a
layer (stage 03). Both are profiled, as the post's runs were; a race without the profiler stands beside them.
"""

from __future__ import annotations

from roseinfer.profiling.slice_rule import COLON_IS_FREE_FROM, torch_version

from ..report.content import PostReport
from ..report.setting import Setting
from . import tables
from .run import AFTER, BEFORE, measure


def reproduce(setting: Setting) -> PostReport:
    """Reproduce the post. Raises ValueError for a model that is not found or does not fit."""
    measured = measure(setting)
    sections = [
        tables.command(measured),
        tables.ops_table(measured, "gather_after", BEFORE),
        tables.ops_table(measured, "append_before", BEFORE),
        tables.ops_table(measured, "append_after", AFTER),
        tables.spans(measured),
        tables.self_time(measured),
        tables.arithmetic(measured),
    ]
    arguments = measured.chosen("num_requests", "max_batch_size", "max_new_tokens")
    arguments |= {"before": BEFORE, "after": AFTER, "repeats": len(measured.raced[BEFORE])}
    return setting.report("000", arguments, sections, {"colon_is_free": torch_version() >= COLON_IS_FREE_FROM})
