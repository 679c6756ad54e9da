"""draw_pool_gather: a pool of blocks, the two index tensors, and the batch that one indexing call picks with them."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from roseinfer.display.figure import PALETTE, Picture, figure_alt
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

EDGE = "#808080"
Cell = tuple[int, int]  # (block, slot)


def draw_pool_gather(stage: Stage, seqs: List[Sequence], layer: int = 0) -> Picture:
    """pool[blocks, slots] of a small batch, with block and slot of every token in cells.

    stage: one with block_ids(seqs, longest) [L, B, max_blocks], such as stage 04, with few and small blocks. A
    cell's colour is the sequence that owns the slot, its number the token's place in that sequence. Hatched: padding.
    """
    lengths = [seq.num_cached_tokens for seq in seqs]
    longest, size = max(lengths), stage.block_size
    slots = [token % size for token in range(longest)]
    table = stage.block_ids(seqs, longest)[layer].tolist()
    blocks = [[row[token // size] for token in range(longest)] for row in table]
    tokens = {
        (stage.tables.of(seq.seq_id, layer)[token // size], token % size): (row, token)
        for row, seq in enumerate(seqs)
        for token in range(seq.num_cached_tokens)
    }

    fig, (pool, index, batch) = plt.subplots(
        1, 3, figsize=(13, 0.3 * stage.tables.num_blocks + 1), layout="constrained",
        width_ratios=[size + 1, longest + 2, longest + 1],
    )  # fmt: skip
    _draw_pool(pool, tokens, stage.tables.num_blocks, size)
    _draw_index(index, blocks, slots, lengths)
    _draw_batch(batch, blocks, slots, lengths, tokens)
    height = max(stage.tables.num_blocks, len(seqs) + 2)
    for ax in (pool, index, batch):
        ax.set(ylim=(height - 0.4, -0.6))  # cells of one size in all three
        ax.grid(False)
    own_blocks = [len(stage.tables.of(seq.seq_id, layer)) for seq in seqs]
    strangers = sum(max(0, longest - n * size) for n in own_blocks)
    return figure_alt(fig, _describe(stage, lengths, blocks, slots, layer, strangers))


def _draw_pool(ax: Axes, tokens: dict[Cell, tuple[int, int]], num_blocks: int, size: int) -> None:
    for block in range(num_blocks):
        for slot in range(size):
            _token(ax, slot, block, tokens.get((block, slot)))
    _frame(ax, "pool", "slot", "block", size, num_blocks)


def _draw_index(ax: Axes, blocks: list[list[int]], slots: list[int], lengths: list[int]) -> None:
    for token, slot in enumerate(slots):
        _cell(ax, token, 0, "none", str(slot))
        for row, ids in enumerate(blocks):
            padding = token >= lengths[row]
            _cell(ax, token, row + 2, _owner(row) if not padding else "none", str(ids[token]), hatched=padding)
    _frame(ax, "slots [T] and blocks [B, T]", "token", "", len(slots), len(blocks) + 2)
    ax.set(yticks=[0, *range(2, len(blocks) + 2)], yticklabels=["slots", *(f"blocks[{i}]" for i in range(len(blocks)))])


def _draw_batch(
    ax: Axes, blocks: list[list[int]], slots: list[int], lengths: list[int], tokens: dict[Cell, tuple[int, int]]
) -> None:
    for row, ids in enumerate(blocks):
        for token, cell in enumerate(zip(ids, slots, strict=True)):
            _token(ax, token, row, tokens.get(cell), hatched=token >= lengths[row])
    _frame(ax, "pool[blocks, slots]", "token", "sequence", len(slots), len(blocks))


def _token(ax: Axes, x: int, y: int, held: tuple[int, int] | None, hatched: bool = False) -> None:
    """held: (sequence, token) that a slot holds; None when nothing was written there yet."""
    colour, text = ("none", "") if held is None else (_owner(held[0]), str(held[1]))
    _cell(ax, x, y, colour, text, hatched)


def _cell(ax: Axes, x: int, y: int, colour: str, text: str, hatched: bool = False) -> None:
    hatch = "////" if hatched else ""
    ax.add_patch(Rectangle((x - 0.5, y - 0.42), 1, 0.84, facecolor=colour, edgecolor=EDGE, hatch=hatch, linewidth=0.8))
    backing = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if hatched else None
    ax.text(x, y, text, ha="center", va="center", fontsize=8, bbox=backing)


def _owner(row: int) -> str:
    """A sequence's colour, half transparent, so that the dark numbers are easy to read."""
    return f"{PALETTE[row % len(PALETTE)]}80"


def _frame(ax: Axes, title: str, xlabel: str, ylabel: str, width: int, height: int) -> None:
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel, xticks=range(width), yticks=range(height))
    ax.set(xlim=(-0.6, width - 0.4))


def _describe(
    stage: Stage, lengths: list[int], blocks: list[list[int]], slots: list[int], layer: int, strangers: int
) -> str:
    """strangers: entries of the batch that are read from block 0, having no block of their own."""
    padding = len(lengths) * len(slots) - sum(lengths)
    rows = "; ".join(f"sequence {i}: {ids}" for i, ids in enumerate(blocks))
    return (
        f"Layer {layer}: a pool of {stage.tables.num_blocks} blocks with {stage.block_size} slots holds "
        f"{len(lengths)} sequences of {lengths} tokens. slots: {slots}. blocks, {rows}. pool[blocks, slots] is a batch "
        f"of {len(lengths)} x {len(slots)}: {sum(lengths)} tokens of content and {padding} of padding, "
        f"{strangers} of it read from block 0."
    )
