"""draw_padding: a decode step's rows, filled up to a bucket, and the slot of the pool that each of them writes."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from roseinfer.display.figure import INK, PALETTE, Picture, figure_alt
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .pictures import draw_box

EMPTY = "none"
HATCH = "////"


def draw_padding(stage: Stage, seqs: List[Sequence], bucket: int) -> Picture:
    """Above: the rows of the step that `stage`, a Graphs, has just run on `seqs`, with one padding row after another up
    to `bucket`. Below: the slots of the pool, those that a sequence has filled coloured. A line joins a row to the slot
    that its K and V went to.

    Raises ValueError when bucket is smaller than the batch.
    """
    if bucket < len(seqs):
        raise ValueError(f"bucket must be at least the {len(seqs)} sequences, got {bucket!r}")
    slots = [int(slot) for slot in stage.inputs_on_host["slot_mapping"][:bucket]]
    size, num_blocks = stage.block_size, stage.dummy_block + 1
    fig, ax = plt.subplots(figsize=(10, 2.7), layout="constrained")
    _draw_pool(ax, stage, seqs, num_blocks)
    middles = [(i + 0.5) * num_blocks * size / bucket for i in range(bucket)]
    for row, (middle, slot) in enumerate(zip(middles, slots, strict=True)):
        is_pad = row >= len(seqs)
        colour = INK if is_pad else PALETTE[row % len(PALETTE)]
        draw_box(ax, middle - 3, 0, 6, EMPTY if is_pad else colour, hatch=HATCH if is_pad else "")
        _label(ax, middle, 0, f"row {row}", 9)
        ax.plot([middle, slot + 0.5], [0.4, 2.6], color=colour, linewidth=1.5, linestyle="--" if is_pad else "-")
    ax.set(xlim=(-0.5, num_blocks * size + 0.5), ylim=(4.1, -0.6))
    ax.axis("off")
    return figure_alt(
        fig,
        f"A batch of {len(seqs)} in a bucket of {bucket}. Rows 0 to {len(seqs) - 1} write the slots "
        f"{slots[: len(seqs)]}, each in a block of its own sequence. The rows that fill up write {slots[len(seqs) :]}, "
        f"in block {stage.dummy_block}, which no sequence is ever given.",
    )


def _draw_pool(ax: Axes, stage: Stage, seqs: List[Sequence], num_blocks: int) -> None:
    size = stage.block_size
    owners = {}
    for row, seq in enumerate(seqs):
        for column, block in enumerate(stage.tables.of(seq.seq_id, 0)):
            owners[block] = row, min(size, max(0, seq.num_cached_tokens - column * size))
    for block in range(num_blocks):
        row, filled = owners.get(block, (0, 0))
        if filled:
            draw_box(ax, block * size, 3, filled, PALETTE[row % len(PALETTE)])
        is_dummy = block == stage.dummy_block
        draw_box(ax, block * size, 3, size, EMPTY, hatch=HATCH if is_dummy else "")
        ax.patches[-1].set(linewidth=1.6, edgecolor=INK)
        ax.vlines([block * size + i for i in range(1, size)], 2.6, 3.4, color=INK, linewidth=0.3)
        ax.text((block + 0.5) * size, 3.8, "dummy block" if is_dummy else f"block {block}", ha="center", fontsize=9)


def _label(ax: Axes, x: float, y: float, text: str, size: int) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    ax.text(x, y, text, ha="center", va="center", fontsize=size, bbox=box)
