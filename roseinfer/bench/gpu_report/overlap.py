"""Whether it pays to launch a step before the one before it is read, and whether the tokens stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from roseinfer.models import load_model

from ..executors import executor_rows
from .context import Context


def overlap(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each batch size, of plan.trace_model: see roseinfer.bench.executors."""
    plan = context.plan
    if not plan.launch_batch_sizes:
        return
    model = load_model(plan.trace_model, device=context.device, dtype=getattr(torch, plan.trace_dtype))
    for row in executor_rows(model, plan.launch_batch_sizes, plan.prompt_len, plan.launch_steps, repeats=5):
        if not row["same_tokens"]:
            context.fail(f"overlap, batch {row['batch_size']}: other tokens than with steps in turn")
        yield row
