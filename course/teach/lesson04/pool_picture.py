"""draw_pool_gather: a pool of blocks, the two index tensors, and the batch that one indexing call picks with them."""

from __future__ import annotations

from collections import abc
from typing import Any

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

CELL = (26, 24)
Held = dict[tuple[int, int], tuple[int, int]]  # (block, slot) -> (sequence, token)


def draw_pool_gather(stage: Any, seqs: abc.Sequence[Sequence]) -> Board:
    """Draw pool[blocks, slots] of a small batch, with block and slot of every token in cells.

    stage: one with block_ids(seqs, longest) [L, B, max_blocks], such as stage 04, with few and small blocks. The colour
    of a cell is the sequence that owns the slot, its number the position of the token in that sequence. Padding is
    hatched.
    """
    lengths = [seq.num_cached_tokens for seq in seqs]
    longest, size = max(lengths), stage.block_size
    slots = [token % size for token in range(longest)]
    table = stage.block_ids(seqs, longest)[0].tolist()
    blocks = [[row[token // size] for token in range(longest)] for row in table]
    held = {
        (stage.tables.of(seq.seq_id, 0)[token // size], token % size): (row, token)
        for row, seq in enumerate(seqs)
        for token in range(seq.num_cached_tokens)
    }
    panels = [
        _pool(held, stage.tables.num_blocks, size),
        _index(blocks, slots, lengths),
        _batch(blocks, slots, lengths, held),
    ]
    own_blocks = [len(stage.tables.of(seq.seq_id, 0)) for seq in seqs]
    strangers = sum(max(0, longest - n * size) for n in own_blocks)
    return Board([Frame(panels)], _describe(stage, lengths, blocks, slots, strangers))


def _pool(held: Held, num_blocks: int, size: int) -> Panel:
    cells = [_token(block, slot, held.get((block, slot))) for block in range(num_blocks) for slot in range(size)]
    return Panel(cells, "pool [block, slot]", range(num_blocks), range(size), cell=CELL)


def _index(blocks: list[list[int]], slots: list[int], lengths: list[int]) -> Panel:
    cells = [Cell(0, token, slot) for token, slot in enumerate(slots)]
    for row, ids in enumerate(blocks):
        for token, block in enumerate(ids):
            is_padding = token >= lengths[row]
            cells.append(Cell(row + 2, token, block, "" if is_padding else row, hatched=is_padding))
    labels = ["slots", "", *(f"blocks[{row}]" for row in range(len(blocks)))]
    return Panel(cells, "slots [T] and blocks [B, T]", labels, range(len(slots)), cell=CELL)


def _batch(blocks: list[list[int]], slots: list[int], lengths: list[int], held: Held) -> Panel:
    cells = [
        _token(row, token, held.get(cell), is_padding=token >= lengths[row])
        for row, ids in enumerate(blocks)
        for token, cell in enumerate(zip(ids, slots, strict=True))
    ]
    return Panel(cells, "pool[blocks, slots]", range(len(blocks)), range(len(slots)), cell=CELL)


def _token(row: int, column: int, held: tuple[int, int] | None, is_padding: bool = False) -> Cell:
    """Make the cell of a slot. held: the (sequence, token) in it; None when nothing was written there yet."""
    colour, text = ("", "") if held is None else held
    return Cell(row, column, text, colour, hatched=is_padding)


def _describe(stage: Stage, lengths: list[int], blocks: list[list[int]], slots: list[int], strangers: int) -> str:
    """Describe the picture in words. strangers: entries of the batch read from block 0, as they have no own block."""
    padding = len(lengths) * len(slots) - sum(lengths)
    rows = "; ".join(f"sequence {i}: {ids}" for i, ids in enumerate(blocks))
    return (
        f"Layer 0: a pool of {stage.tables.num_blocks} blocks with {stage.block_size} slots holds "
        f"{len(lengths)} sequences of {lengths} tokens. slots: {slots}. blocks, {rows}. pool[blocks, slots] is a batch "
        f"of {len(lengths)} x {len(slots)}: {sum(lengths)} tokens of content and {padding} of padding, "
        f"{strangers} of it read from block 0."
    )
