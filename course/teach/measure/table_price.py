"""table_price: what it costs to build the block tables again on every step, and how much of that was news."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import torch

from roseinfer.bench.contenders import StageContender
from roseinfer.display.table import Table
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import decode_floor, measure_machine
from roseinfer.profiling.clock import seconds_of
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

BUILDS_TIMED = 30


def table_price(
    stage_class: type[Stage], model: Model, batches: dict[str, list[int]], steps: int = 64, block_size: int = 64
) -> Table:
    """Decode each batch for `steps` steps: rows built, rows that differ from the step before, and the build's time.

    batches: maps a name to prompt lengths, one a sequence. stage_class: one with build_block_tables, such as
    BlockTable.
    The build is timed alone, after the last step, and compared with the whole step and with the step's floor.
    Raises ValueError for a stage without block tables.
    """
    import pandas as pd

    require_tables("stage_class", stage_class)
    rows = []
    for name, lengths in batches.items():
        prompts = [[3] * n for n in lengths]
        stage: Any  # with block tables of its own
        stage, seqs = StageContender(stage_class, model, prompts, steps + 3, block_size=block_size).at_step(1)
        changed, step_seconds = _decode(stage, seqs, steps)
        build = partial(stage.build_block_tables, seqs, torch.empty_like(_tables(stage, seqs), device="cpu"))
        build_seconds = median(seconds_of(build) for _ in range(BUILDS_TIMED))
        context_lens = [len(seq) for seq in seqs]
        floor = decode_floor(model.config, context_lens, model.dtype, measure_machine(model.device, model.dtype))
        rows_a_step = model.config.num_layers * len(seqs)
        rows.append(
            {
                "batch": name,
                "rows a step": rows_a_step,
                "rows built": steps * rows_a_step,
                "rows changed": changed,
                "build us": 1e6 * build_seconds,
                "of the step": build_seconds / step_seconds,
                "of the floor": build_seconds / floor.seconds,
            }
        )
    live = ["build us", "of the step", "of the floor"]
    return Table(
        pd.DataFrame(rows),
        exact=["batch", "rows a step", "rows built", "rows changed"],
        live=live,
        title=f"Block tables over {steps} steps, blocks of {block_size} tokens",
        note="build us: median time of one build alone; floor: the least that the step must read and compute here",
        formats={"build us": "{:,.0f}", "of the step": "{:.1%}", "of the floor": "{:.0%}"},
    )


def require_tables(argument: str, stage_class: type[Stage]) -> None:
    """Raise ValueError unless the stage builds block tables."""
    if not hasattr(stage_class, "build_block_tables"):
        raise ValueError(f"{argument} must be a stage with block tables, such as BlockTable, got {stage_class.name}")


def _decode(stage: Stage, seqs: list[Sequence], steps: int) -> tuple[int, float]:
    """Decode `steps` steps; return how many table rows changed between steps, and the median seconds of a step."""
    before, changed, seconds = _tables(stage, seqs), 0, []
    for _ in range(steps):
        seconds.append(seconds_of(lambda: decode_step(stage, seqs)))
        now = _tables(stage, seqs)
        changed += int((now != before).any(-1).sum())
        before = now
    return changed, median(seconds)


def _tables(stage: Any, seqs: list[Sequence]) -> torch.Tensor:
    return stage.tables_of(stage.device_buffer, seqs).clone()
