"""Block tables without a model: what the host does in a decode step to build them, counted and timed.

Tables depend on which blocks a sequence holds and on nothing that a model computes. So blocks are reserved here and
tables built exactly as in Stage.decode, and no K or V is ever written.
"""

from __future__ import annotations

from collections import abc
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.profiling import count_ops
from roseinfer.profiling.clock import seconds_of
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .contenders import stage_for
from .interleave import interleaved
from .ladder import check_stages

AWAY, EDGE = "away from an edge", "at an edge"


class TableBatch:
    """Sequences that hold blocks in a stage with block tables (05 on), and whose tables can be built.

    room: how many tokens each sequence may have. Raises ValueError when the model has fewer positions than that.
    """

    def __init__(self, stage_class: type[Stage], model: Model, num_seqs: int, room: int, block_size: int = 64) -> None:
        if room > model.config.max_model_len:
            raise ValueError(
                f"length + steps must be at most max_model_len={model.config.max_model_len}, got {room} tokens"
            )
        self.stage: Any = stage_for(stage_class, model, [room + 1] * num_seqs, block_size)
        self.seqs: list[Sequence] = []

    def admit(self, lengths: abc.Sequence[int]) -> None:
        """Free what is held, and hold new sequences, with so many cached tokens each."""
        for seq in self.seqs:
            self.stage.free(seq)
        self.seqs = [Sequence([0]) for _ in lengths]
        self.stage.tables.reserve({seq.seq_id: n for seq, n in zip(self.seqs, lengths, strict=True)})
        for seq, n in zip(self.seqs, lengths, strict=True):
            seq.num_cached_tokens = n

    @torch.inference_mode()
    def step(self) -> float:
        """Build one decode step's tables; return the seconds that this took. Each sequence then has one token more."""
        self.stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in self.seqs})
        seconds = seconds_of(lambda: self.stage.build_block_tables(self.seqs, self.out))
        for seq in self.seqs:
            seq.num_cached_tokens += 1
        return seconds

    @property
    def out(self) -> Tensor:
        """Where the stage builds the tables of this batch: [tables, B, max_blocks]."""
        return self.stage.tables_of(self.stage.host_buffer, self.seqs)

    def count_rows(self) -> int:
        """Take a step, and count the rows that it made from a Python list of block ids: the calls of padded_row."""
        made, padded_row = 0, self.stage.padded_row

        def counted(block_ids: list[int]) -> list[int]:
            nonlocal made
            made += 1
            return padded_row(block_ids)

        self.stage.padded_row = counted
        try:
            self.step()
        finally:
            del self.stage.padded_row  # which hid the class's own
        return made


def table_steps(
    stage_class: type[Stage], model: Model, lengths: abc.Sequence[int], steps: int, block_size: int = 64
) -> list[int]:
    """Count the rows that each of `steps` decode steps makes for sequences of these cached lengths. No model runs.

    Raises ValueError when a sequence would outgrow the model's positions.
    """
    batch = TableBatch(stage_class, model, len(lengths), max(lengths) + steps, block_size)
    batch.admit(lengths)
    return [batch.count_rows() for _ in range(steps)]


def compare_builds(
    stages: abc.Sequence[type[Stage]],
    model: Model,
    batch_sizes: abc.Sequence[int],
    steps: int = 12,
    block_size: int = 64,
) -> Table:
    """Compare build_block_tables of the stages, away from an edge and where all sequences take a new block.

    Exact: rows made, copies, stacks, bytes of the tables. Live: the median of `steps` interleaved builds, and each
    stage's time against the first one's (above 1: faster). Raises ValueError for `steps` that would reach an edge.
    """
    import pandas as pd

    if not 1 <= steps <= block_size - 4:
        raise ValueError(f"steps must be 1 to {block_size - 4}, so that no edge is met, got {steps}")
    check_stages(stages)
    rows = []
    for batch_size in batch_sizes:
        for kind in (AWAY, EDGE):
            batches = {stage.name: TableBatch(stage, model, batch_size, 2 * block_size, block_size) for stage in stages}
            counted = {stage: _counts(batch, batch_size, kind) for stage, batch in batches.items()}
            for batch in batches.values():
                _prepare(batch, batch_size, AWAY)
            builds = {stage: partial(_build, batch, batch_size, kind) for stage, batch in batches.items()}
            medians = {stage: median(seconds) for stage, seconds in interleaved(builds, steps).items()}
            for stage, seconds in medians.items():
                rows.append({"batch": batch_size, "step": kind, "stage": stage, **counted[stage]})
                rows[-1] |= {"build us": 1e6 * seconds, "speed": medians[stages[0].name] / seconds}
    return Table(
        pd.DataFrame(rows),
        exact=["batch", "step", "stage", "rows built", "copies", "stacks", "table bytes"],
        live=["build us", "speed"],
        title="build_block_tables alone",
        note=f"build us: median of {steps} interleaved builds; speed: against {stages[0].name} on the same step",
        formats={"build us": "{:,.0f}", "speed": "×{:.2f}", "table bytes": "{:,}"},
    )


def _prepare(batch: TableBatch, batch_size: int, kind: str) -> None:
    """Bring the batch to one step before: every row built, and the next token past the edge or not."""
    block_size = batch.stage.block_size
    batch.admit([block_size - 1 if kind == EDGE else 1] * batch_size)
    batch.step()


def _counts(batch: TableBatch, batch_size: int, kind: str) -> dict[str, int]:
    _prepare(batch, batch_size, kind)
    rows = batch.count_rows()
    _prepare(batch, batch_size, kind)
    ops = count_ops(batch.step)
    return {
        "rows built": rows,
        "copies": ops["aten::copy_"],
        "stacks": ops["aten::stack"],
        "table bytes": batch.out.nbytes,
    }


def _build(batch: TableBatch, batch_size: int, kind: str) -> float:
    """Time one build of that kind, in seconds."""
    if kind == EDGE:
        _prepare(batch, batch_size, EDGE)
    return batch.step()
