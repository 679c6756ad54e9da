"""table_price: what it costs to build the block tables anew on every step, and how much of that was news."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from roseinfer.display.table import Table
from roseinfer.generate import begin, decode_step
from roseinfer.models import Model
from roseinfer.profiling import decode_floor, measure_machine
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

BUILDS_TIMED = 30


def table_price(
    stage_class: type[Stage], model: Model, batches: dict[str, list[int]], steps: int = 64, block_size: int = 64
) -> Table:
    """Decode each batch for `steps` steps: rows built, rows that differ from the step before, and the build's time.

    batches: a name -> prompt lengths, one a sequence. stage_class: one with build_block_tables, such as BlockTable.
    The build is timed alone, after the last step; it is set against the whole step and against the step's floor.
    Raises ValueError for a stage without block tables.
    """
    import pandas as pd

    require_tables("stage_class", stage_class)
    rows = []
    for name, lengths in batches.items():
        blocks = sum(-(-(n + steps + 2) // block_size) for n in lengths)
        stage = stage_class(model, num_blocks=blocks, block_size=block_size, max_num_seqs=len(lengths))
        seqs = begin(stage, [[3] * n for n in lengths], SamplingParams(max_tokens=steps + 3, ignore_eos=True))
        changed, step_seconds = _decode(stage, seqs, steps)
        build_seconds = _build_seconds(stage, seqs)
        context_lens = [len(seq) for seq in seqs]
        floor = decode_floor(model.config, context_lens, model.dtype, measure_machine(model.device, model.dtype))
        rows_a_step = model.config.num_layers * len(seqs)
        rows.append(
            {
                "batch": name, "rows a step": rows_a_step, "rows built": steps * rows_a_step, "rows changed": changed,
                "build us": 1e6 * build_seconds, "of the step": build_seconds / step_seconds,
                "of the floor": build_seconds / floor.seconds,
            }
        )  # fmt: skip
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
    """Raises ValueError unless the stage builds block tables."""
    if not hasattr(stage_class, "build_block_tables"):
        raise ValueError(f"{argument} must be a stage with block tables, such as BlockTable, got {stage_class.name}")


def _decode(stage: Stage, seqs: list[Sequence], steps: int) -> tuple[int, float]:
    """Table rows that changed from one step to the next, over `steps` steps, and the median seconds of a step."""
    decode_step(stage, seqs)
    before, changed, seconds = _tables(stage, seqs), 0, []
    for _ in range(steps):
        start = perf_counter()
        decode_step(stage, seqs)
        seconds.append(perf_counter() - start)
        now = _tables(stage, seqs)
        changed += int((now != before).any(-1).sum())
        before = now
    return changed, median(seconds)


def _tables(stage: Stage, seqs: list[Sequence]) -> torch.Tensor:
    return stage.tables_of(stage.device_buffer, seqs).clone()


def _build_seconds(stage: Stage, seqs: list[Sequence]) -> float:
    out = torch.empty_like(_tables(stage, seqs), device="cpu")
    seconds = []
    for _ in range(BUILDS_TIMED):
        start = perf_counter()
        stage.build_block_tables(seqs, out)
        seconds.append(perf_counter() - start)
    return median(seconds)
