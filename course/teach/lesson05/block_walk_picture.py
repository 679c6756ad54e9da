"""draw_block_walk: the padded batch that a gather makes, beside the way each query takes through the pool."""

from __future__ import annotations

from collections import abc
from typing import Any

from course.display.board import Board, Cell, Frame, Line, Panel
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

BATCH_WIDTH, ROW, BLOCK = 250, 44, 32  # pixels
BLOCKS_FROM = 1.5  # the column of block 0, right of the queries
STOP = 0.7  # of a block: the width of a stop
BEND = 0.4


def draw_block_walk(stage: Stage, seqs: abc.Sequence[Sequence]) -> Board:
    """Draw the batch [B, H_kv, T, D] that attention would want, and where the same tokens lie in the pool.

    The pool, to the right, is drawn up to the last block in use, with the order in which each sequence's query visits
    its blocks.
    """
    lengths = [seq.num_cached_tokens for seq in seqs]
    walks = [stage.tables.of(s.seq_id, 0)[: stage.tables.blocks_for(n)] for s, n in zip(seqs, lengths, strict=True)]
    padding = sum(max(lengths) - n for n in lengths)
    ways = "; ".join(f"sequence {i}: {walk}" for i, walk in enumerate(walks))
    return Board(
        [Frame([_batch(lengths), _walks(walks, num_blocks=1 + max(map(max, walks)))])],
        f"Left, gathered: {len(seqs)} x {max(lengths)} tokens, {padding} of them padding. Right, a walk over blocks of "
        f"{stage.block_size} tokens, nothing gathered: {ways}.",
    )


def _batch(lengths: list[int]) -> Panel:
    longest = max(lengths)
    cells = [Cell(row, 0, colour=row, width=n) for row, n in enumerate(lengths)]
    cells += [Cell(row, n, hatched=True, width=longest - n) for row, n in enumerate(lengths) if n < longest]
    labels = [f"seq {row}" for row in range(len(lengths))]
    title, cell = f"04: gathered, padded to T = {longest}", (BATCH_WIDTH / longest, ROW)
    return Panel(cells, title, labels, unit="token", cell=cell)


def _walks(walks: list[list[int]], num_blocks: int) -> Panel:
    """Draw one lane per sequence, and the pool below; numbers give the order in which a walk visits its blocks."""
    owners = {block: row for row, walk in enumerate(walks) for block in walk}
    pool = len(walks)
    cells = [Cell(pool, BLOCKS_FROM + block, block, owners.get(block, "")) for block in range(num_blocks)]
    lines = []
    for row, walk in enumerate(walks):
        cells.append(_stop(row, 0, "q"))
        cells += [_stop(row, BLOCKS_FROM + block, order, colour=row) for order, block in enumerate(walk, 1)]
        columns = [0, *(BLOCKS_FROM + block for block in walk)]
        for start, end in zip(columns, columns[1:], strict=False):
            is_near = start == 0 or end - start == 1
            ends = (row + 0.5, start + (1 + STOP) / 2), (row + 0.5, end + (1 - STOP) / 2)
            lines.append(Line(*ends, colour=row, bend=0 if is_near else BEND, arrow=True))
    labels = [*(f"seq {row}" for row in range(pool)), "pool"]
    title = "05: a walk through the pool, by the block table"
    return Panel(cells, title, labels, cell=(BLOCK, ROW), lines=lines)


def _stop(row: int, column: float, text: object, **look: Any) -> Cell:
    return Cell(row + 0.25, column + (1 - STOP) / 2, text, width=STOP, height=0.5, **look)
