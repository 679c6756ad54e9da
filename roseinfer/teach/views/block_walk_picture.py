"""draw_block_walk: the padded batch that a gather makes, beside the way each query takes through the pool."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from roseinfer.display.figure import INK, PALETTE, PAPER, Picture, figure_alt
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from .pictures import EDGE, draw_box

FREE = "#EEEEEE"


def draw_block_walk(stage: Stage, seqs: List[Sequence], layer: int = 0) -> Picture:
    """Left: the batch [B, H_kv, T, D] that attention would want. Right: the same tokens where they lie in the pool of
    one layer, up to the last block in use, and the order in which each sequence's query visits its blocks."""
    lengths = [seq.num_cached_tokens for seq in seqs]
    walks = [stage.tables.of(s.seq_id, layer)[: stage.tables.blocks_for(n)] for s, n in zip(seqs, lengths, strict=True)]
    fig, (left, right) = plt.subplots(
        1, 2, figsize=(11, 0.6 * len(seqs) + 1.6), layout="constrained", width_ratios=(2, 3)
    )
    _draw_batch(left, lengths)
    _draw_walks(right, walks, num_blocks=1 + max(map(max, walks)))
    padding = sum(max(lengths) - n for n in lengths)
    ways = "; ".join(f"sequence {i}: {walk}" for i, walk in enumerate(walks))
    return figure_alt(
        fig,
        f"Left, gathered: {len(seqs)} x {max(lengths)} tokens, {padding} of them padding. Right, a walk over blocks of "
        f"{stage.block_size} tokens, nothing gathered: {ways}.",
    )


def _draw_batch(ax: Axes, lengths: list[int]) -> None:
    longest = max(lengths)
    for row, n in enumerate(lengths):
        draw_box(ax, 0, row, n, PALETTE[row % len(PALETTE)])
        if n < longest:
            draw_box(ax, n, row, longest - n, "none", hatch="////")
    ax.set(title=f"04: gathered, padded to T = {longest}", xlabel="token", ylabel="sequence", xlim=(0, longest * 1.03))
    ax.grid(False)
    ax.set(yticks=range(len(lengths)), ylim=(len(lengths) - 0.4, -0.6))


def _draw_walks(ax: Axes, walks: list[list[int]], num_blocks: int) -> None:
    """A lane a sequence, and the pool below them: a dot marks a block that the walk visits, its number the order."""
    pool = len(walks)
    owners = {block: row for row, walk in enumerate(walks) for block in walk}
    for block in range(num_blocks):
        colour = PALETTE[owners[block] % len(PALETTE)] if block in owners else FREE
        draw_box(ax, block - 0.45, pool, 0.9, colour)
        ax.text(block, pool, str(block), ha="center", va="center", fontsize=8)
    for row, walk in enumerate(walks):
        colour = PALETTE[row % len(PALETTE)]
        frame = {"boxstyle": "round", "facecolor": PAPER, "edgecolor": EDGE}
        ax.text(-1.6, row, "q", ha="center", va="center", bbox=frame)
        for order, (start, stop) in enumerate(zip([-1.2, *walk], walk, strict=False), 1):
            bend = "arc3" if order == 1 else "arc3,rad=-0.25"
            style = {"arrowstyle": "-|>", "color": colour, "connectionstyle": bend, "shrinkA": 6, "shrinkB": 6}
            ax.annotate("", (stop, row), (start, row), arrowprops=style)
            ax.scatter(stop, row, s=130, color=PAPER, edgecolor=colour, zorder=3)
            ax.text(stop, row, str(order), ha="center", va="center", fontsize=8, color=INK, zorder=4)
    ax.set(title="05: a walk through the pool, by the block table", xlabel="physical block", xlim=(-2.2, num_blocks))
    ax.set(yticks=[*range(pool), pool], yticklabels=[*map(str, range(pool)), "pool"], ylim=(pool + 0.6, -0.6))
    ax.set_xticks([])
    ax.grid(False)
