"""Block tables without a model: what the host does in a decode step to build them, counted and timed.

Tables depend on which blocks a sequence holds and on nothing that a model computes. So blocks are reserved here and
tables built exactly as in Stage.decode, and no K or V is ever written.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from roseinfer.display.table import Table
from roseinfer.models import Model
from roseinfer.profiling import count_ops
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

AWAY, EDGE = "away from an edge", "at an edge"


class TableBatch:
    """Sequences that hold blocks in a stage with block tables (05 on), and whose tables can be built.

    room: for how many tokens a sequence. Raises ValueError when the model has fewer positions than that.
    """

    def __init__(self, stage_class: type[Stage], model: Model, num_seqs: int, room: int, block_size: int = 64) -> None:
        if room > model.config.max_model_len:
            raise ValueError(
                f"length + steps must be at most max_model_len={model.config.max_model_len}, got {room} tokens"
            )
        blocks = num_seqs * -(-room // block_size)
        self.stage: Any = stage_class(model, num_blocks=blocks, block_size=block_size, max_num_seqs=num_seqs)
        self.seqs: list[Sequence] = []

    def admit(self, lengths: List[int]) -> None:
        """Free what is held and hold new sequences, with so many cached tokens each."""
        for seq in self.seqs:
            self.stage.free(seq)
        self.seqs = [Sequence([0]) for _ in lengths]
        self.stage.tables.reserve({seq.seq_id: n for seq, n in zip(self.seqs, lengths, strict=True)})
        for seq, n in zip(self.seqs, lengths, strict=True):
            seq.num_cached_tokens = n

    @torch.inference_mode()
    def step(self) -> float:
        """One decode step's tables; seconds that building them took. Afterwards each sequence has a token more."""
        self.stage.tables.reserve({seq.seq_id: seq.num_cached_tokens + 1 for seq in self.seqs})
        start = perf_counter()
        self.stage.build_block_tables(self.seqs, self.out)
        seconds = perf_counter() - start
        for seq in self.seqs:
            seq.num_cached_tokens += 1
        return seconds

    @property
    def out(self) -> Tensor:
        """Where the stage builds the tables of this batch: [tables, B, max_blocks]."""
        return self.stage.tables_of(self.stage.host_buffer, self.seqs)

    def count_rows(self) -> int:
        """As step: how many rows it made from a Python list of block ids, one each time padded_row was called."""
        made = 0
        padded_row = self.stage.padded_row

        def counted(blocks: list[int]) -> list[int]:
            nonlocal made
            made += 1
            return padded_row(blocks)

        self.stage.padded_row = counted
        try:
            self.step()
        finally:
            del self.stage.padded_row
        return made


def table_steps(
    stage_class: type[Stage], model: Model, lengths: List[int], steps: int, block_size: int = 64
) -> list[int]:
    """Rows that each of `steps` decode steps makes for sequences of these cached lengths. No model runs.

    Raises ValueError when a sequence would outgrow the model's positions.
    """
    batch = TableBatch(stage_class, model, len(lengths), max(lengths) + steps, block_size)
    batch.admit(lengths)
    return [batch.count_rows() for _ in range(steps)]


def compare_builds(
    stages: List[type[Stage]], model: Model, batch_sizes: List[int], steps: int = 12, block_size: int = 64
) -> Table:
    """build_block_tables of each stage on a step away from an edge, and on one where all sequences take a new block.

    Exact: rows made, copies, stacks, bytes of the tables. Live: the median of `steps` interleaved builds, and each
    stage's time against the first one's (above 1: faster). Raises ValueError for `steps` that would reach an edge.
    """
    import pandas as pd

    if not 1 <= steps <= block_size - 4:
        raise ValueError(f"steps must be 1 to {block_size - 4}, so that no edge is met, got {steps}")
    rows = []
    for batch_size in batch_sizes:
        for kind in (AWAY, EDGE):
            batches = [TableBatch(stage, model, batch_size, 2 * block_size, block_size) for stage in stages]
            counted = [_counts(batch, batch_size, kind) for batch in batches]
            times = _interleaved(batches, batch_size, kind, steps)
            for stage, counts, seconds in zip(stages, counted, times, strict=True):
                rows.append({"batch": batch_size, "step": kind, "stage": stage.name, **counts})
                rows[-1] |= {"build us": 1e6 * median(seconds), "speed": median(times[0]) / median(seconds)}
    return Table(
        pd.DataFrame(rows),
        exact=["batch", "step", "stage", "rows built", "copies", "stacks", "table bytes"],
        live=["build us", "speed"],
        title="build_block_tables alone",
        note=f"build us: median of {steps} interleaved builds; speed: against {stages[0].name} on the same step",
        formats={"build us": "{:,.0f}", "speed": "×{:.2f}", "table bytes": "{:,}"},
    )


def _prepare(batch: TableBatch, batch_size: int, kind: str) -> None:
    """The batch as it is one step before: every row built, and the next token behind the edge or not."""
    block_size = batch.stage.block_size
    batch.admit([block_size - 1 if kind == EDGE else 1] * batch_size)
    batch.step()


def _counts(batch: TableBatch, batch_size: int, kind: str) -> dict[str, int]:
    _prepare(batch, batch_size, kind)
    rows = batch.count_rows()
    _prepare(batch, batch_size, kind)
    ops = count_ops(batch.step)
    return {
        "rows built": rows, "copies": ops["aten::copy_"], "stacks": ops["aten::stack"], "table bytes": batch.out.nbytes
    }  # fmt: skip


def _interleaved(batches: List[TableBatch], batch_size: int, kind: str, steps: int) -> list[list[float]]:
    """Seconds of each build, a list a batch; A B A B, so that a slow moment of the machine hits all alike."""
    for batch in batches:
        _prepare(batch, batch_size, AWAY)
    times: list[list[float]] = [[] for _ in batches]
    for _ in range(steps):
        for seconds, batch in zip(times, batches, strict=True):
            if kind == EDGE:
                _prepare(batch, batch_size, EDGE)
            seconds.append(batch.step())
    return times
