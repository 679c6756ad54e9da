"""count_launches and least_times: what a decode step starts, and the least time that it takes on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from roseinfer.bench.decode_step import LAUNCH_S
from roseinfer.display.table import Table
from roseinfer.graphs.operation import operation
from roseinfer.models import Model, model_config
from roseinfer.profiling import decode_floor
from roseinfer.profiling.data_sheets import data_sheet
from roseinfer.stage import Stage

from ..lesson13.step_operations import operations_of
from ..views.rows_table import table

FUSED = "fused_linear"  # the kernel of stage 23
PRODUCTS = "products"
KINDS = {  # what a kind's operations have in their names; the first kind that fits counts
    PRODUCTS: (FUSED, "linear", "mm"),
    "attention": ("attention",),
    "norms": ("norm",),
    "GELU": ("gelu",),
    "additions": ("add",),
}
REST = "rest"
LAUNCH_US = 1e6 * LAUNCH_S
US = 1e6


def launches_of(stage: Any, bucket: int) -> list[str]:
    """List the operations that a step for `bucket` rows starts, by name, on any device; views start nothing.

    All rows are padding. A stage's kernel counts once, and so does attention, which on a GPU may be a few launches.
    """
    inside = stage.attention

    def attention(*given: Any) -> Any:
        return inside(*given)

    stage.write_padding(0, bucket)
    stage.write_tables([], [])
    stage.attention = operation(attention)
    try:
        with torch.inference_mode():
            started = operations_of(stage.static_step(bucket))
    finally:
        stage.attention = inside
    return [each.name for each in started if not each.is_view]


def kind_of(name: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), REST)


def count_launches(stage_classes: Sequence[type[Stage]], model: Model, batch_sizes: Sequence[int] = (1,)) -> Table:
    """Count what a decode step of each stage starts, by kind, for each number of sequences."""
    rows = []
    for size in batch_sizes:
        for stage_class in stage_classes:
            stage: Any = stage_class(model, num_blocks=1, max_num_seqs=size)
            counts = Counter(map(kind_of, launches_of(stage, size)))
            row = {"stage": stage_class.name, "sequences": size}
            rows.append(row | {kind: counts[kind] for kind in (*KINDS, REST)} | {"all": counts.total()})
    return table(rows, title=f"What one decode step starts, {model.config.num_layers} layers")


def least_times(
    specs: Sequence[str], batch_sizes: Sequence[int], launches: Callable[[Any], int], context: int = 300,
    gpu: str = "H200 SXM",
) -> Table:  # fmt: skip
    """Compute the least time of a decode step in 16 bits on a GPU, a row for each model and number of sequences.

    Args:
        specs: of models, such as "random:gpt2"; nothing is loaded.
        batch_sizes: how many sequences.
        launches: how many kernels a step starts, as a function of the model's config.
        context: cached tokens of each sequence.
        gpu: whose data sheet says how fast it reads.
    """
    rate, rows = data_sheet(gpu)["read_bytes_per_s"], []
    for spec in specs:
        config = model_config(spec)
        for size in batch_sizes:
            floor = decode_floor(config, [context] * size, torch.bfloat16)
            num_bytes = floor.weight_bytes + floor.kv_bytes
            reading, starting = US * num_bytes / rate, launches(config) * LAUNCH_US
            rows.append({
                "model": spec, "sequences": size, "MB": num_bytes / 1e6, "reading, µs": reading,
                "launches": launches(config), "starting, µs": starting,
                "bound by": "reading" if reading > starting else "launches",
            })  # fmt: skip
    formats = {name: "{:,.0f}" for name in rows[0] if "µs" in name or name == "MB"}
    note = f"{context} cached tokens a sequence; {LAUNCH_US:g} µs to start a kernel inside a graph"
    return table(rows, title=f"A decode step in bf16 on an {gpu}, by its data sheet", note=note, formats=formats)
