"""draw_programs: which program of a paged attention kernel walks over which tiles, a tile per step."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator

from course.display.board import WIDTH, Board, Cell, Frame, Panel, table
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

ROW = 15  # pixels
UNREAD, READ = 0.12, 0.5  # strength of tiles
COLUMNS = ("", "block_table says", "slots of K and V", "cached tokens", "masked rows")
LEGEND = (
    Cell(0, 0, "tile of sequence 0, not read yet", 0, strength=UNREAD),
    Cell(0, 0, "read", 0, strength=READ),
    Cell(0, 0, "read now", 0, strength=READ, outline=INK),
    Cell(0, 0, "masked: no cached token", hatched=True),
    Cell(0, 0, "the reference's walk", outline=PALETTE[3], dashed=True),
)
START = (
    "top is the new token's own score, total is exp(0) = 1, acc is its value: the softmax's first element. No tile has "
    "been read. All three are kept in registers: teach.walk_online_softmax shows them."
)
STEP = (
    "A program loads the tile's K and V. top becomes the largest score so far; total and acc shrink by "
    "exp(old top - top), then the tile is added. All three stay in registers: teach.walk_online_softmax shows them."
)


def draw_programs(stage: Stage, seqs: abc.Sequence[Sequence], tile: int) -> Board:
    """Draw the programs of a kernel: one row per (sequence, KV head), one box per tile in the colour of its sequence.

    Masked slots are hatched. A slider goes over the tiles, as if all programs took one at a time; below is what they
    read. The dashed frame is what an attention would walk over if it took every sequence to the end of the longest one.
    Raises ValueError when tile does not divide the stage's block size.
    """
    if stage.block_size % tile:
        raise ValueError(f"tile must divide block_size={stage.block_size}, got {tile}")
    heads, lengths = stage.config.num_kv_heads, [seq.num_cached_tokens for seq in seqs]
    width = max(-(-n // stage.block_size) for n in lengths) * stage.block_size
    tables = [
        list(stage.tables.of(seq.seq_id, 0))[: -(-n // stage.block_size)] for seq, n in zip(seqs, lengths, strict=True)
    ]
    tiles = sum(-(-n // tile) for n in lengths) * heads
    steps = range(-(-max(lengths) // tile) + 1)
    return Board(
        [
            Frame(
                [
                    _programs(lengths, tables, heads, width, stage.block_size, tile, step),
                    _reads(lengths, tables, stage.block_size, tile, step),
                ],
                f"tile {step - 1} of each program" if step else "before the first tile",
                STEP if step else START,
            )
            for step in steps
        ],
        f"{heads * len(seqs)} programs, {heads} for each of {len(seqs)} sequences with {lengths} cached tokens: they "
        f"walk over {tiles} tiles of {tile} tokens. To the longest sequence's end for all of them it would be "
        f"{heads * len(seqs) * width // tile}.",
        "tiles read,",
        legend=LEGEND,
    )


def _programs(
    lengths: list[int], tables: list[list[int]], heads: int, width: int, block_size: int, tile: int, step: int
) -> Panel:
    cells: list[Cell] = []
    labels: list[str] = []
    for seq, (length, blocks) in enumerate(zip(lengths, tables, strict=True)):
        for index, block in enumerate(blocks):
            start = index * block_size
            cells.append(Cell(len(labels), start, f"block {block}", width=block_size, outline="none"))
        labels.append(f"sequence {seq}")
        for head in range(heads):
            cells += _program(len(labels), length, tile, seq, step)
            labels.append(f"head {head}")
    cells.append(Cell(0, 0, width=width, height=len(labels), outline=PALETTE[3], dashed=True))
    return Panel(cells, rows=labels, unit="cached token", cell=(WIDTH, ROW))


def _program(row: int, num_cached: int, tile: int, seq: int, step: int) -> Iterator[Cell]:
    for number, start in enumerate(range(0, num_cached, tile), 1):
        loaded = min(tile, num_cached - start)
        if loaded < tile:
            yield Cell(row, start + loaded, hatched=True, width=tile - loaded, outline="none")
        outline, strength = INK if number == step else "", UNREAD if number > step else READ
        yield Cell(row, start, colour=seq, filled=loaded / tile, width=tile, outline=outline, strength=strength)


def _reads(lengths: list[int], tables: list[list[int]], block_size: int, tile: int, step: int) -> Panel:
    """List what each sequence's programs read now: all read the same rows, each those of its own KV head."""
    rows = []
    for seq, (length, blocks) in enumerate(zip(lengths, tables, strict=True)):
        start = (step - 1) * tile
        said = ["", "", "", ""]
        if step and start < length:
            loaded, column, slot = min(tile, length - start), start // block_size, start % block_size
            said = [
                f"[{seq}, {column}] = block {blocks[column]}",
                _span(slot, loaded),
                _span(start, loaded),
                f"{tile - loaded} of {tile}" if loaded < tile else "none",
            ]
        elif step:
            said[0] = "done"
        rows.append([f"sequence {seq}", *said])
    return table("What the programs of a sequence read now", COLUMNS, rows)


def _span(first: int, count: int) -> str:
    return f"{first} to {first + count - 1}" if count > 1 else str(first)
