"""draw_programs: which program of a paged attention kernel walks over which tiles."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List

from roseinfer.display.figure import PALETTE
from roseinfer.display.grid import Grid
from roseinfer.display.shapes import WIDTH, Cell, Frame, Panel, edge_ticks
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

LABELS, ROW = 90, 15  # pixels


def draw_programs(stage: Stage, seqs: List[Sequence], tile: int, layer: int = 0) -> Grid:
    """One row per program (sequence, KV head), one box per tile in the colour of its sequence; hatched: masked.

    The dashed frame is what an attention would walk over that takes every sequence to the longest one's end.
    Raises ValueError when tile does not divide the stage's block size.
    """
    if stage.block_size % tile:
        raise ValueError(f"tile must divide block_size={stage.block_size}, got {tile}")
    heads, lengths = stage.config.num_kv_heads, [seq.num_cached_tokens for seq in seqs]
    width = max(-(-n // stage.block_size) for n in lengths) * stage.block_size
    cells, labels = [], []
    for i, seq in enumerate(seqs):
        labels += [f"sequence {i}", *(f"head {head}" for head in range(heads))]
        for index, block in enumerate(stage.tables.of(seq.seq_id, layer)):
            start = index * stage.block_size
            if start < seq.num_cached_tokens:
                cells.append(
                    Cell(len(labels) - heads - 1, start, f"block {block}", width=stage.block_size, outline="none")
                )
        for head in range(heads):
            cells += _program(len(labels) - heads + head, seq.num_cached_tokens, tile, i)
    cells.append(Cell(0, 0, width=width, height=len(labels), outline=PALETTE[3], dashed=True))
    tiles = sum(-(-n // tile) for n in lengths) * heads
    cell = (WIDTH - LABELS) / width, ROW
    return Grid(
        [Frame([Panel(cells, rows=labels, ticks=edge_ticks(width), unit="cached token", cell=cell)])],
        f"{heads * len(seqs)} programs, {heads} for each of {len(seqs)} sequences with {lengths} cached tokens: they "
        f"walk over {tiles} tiles of {tile} tokens. To the longest sequence's end for all of them it would be "
        f"{heads * len(seqs) * width // tile}.",
    )


def _program(row: int, num_cached: int, tile: int, seq: int) -> Iterator[Cell]:
    for start in range(0, num_cached, tile):
        loaded = min(tile, num_cached - start)
        if loaded < tile:
            yield Cell(row, start + loaded, hatched=True, width=tile - loaded, outline="none")
        yield Cell(row, start, colour=seq, filled=loaded / tile, width=tile)
