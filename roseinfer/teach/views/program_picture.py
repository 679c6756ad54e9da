"""draw_programs: which program of a paged attention kernel walks over which tiles."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from roseinfer.display.figure import INK, PALETTE, PAPER, Picture, figure_alt
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

EDGE = "#808080"
LABEL = {"boxstyle": "round", "facecolor": PAPER, "edgecolor": EDGE, "linewidth": 0.6}


def draw_programs(stage: Stage, seqs: List[Sequence], tile: int, layer: int = 0) -> Picture:
    """A row a program (sequence, KV head), a box a tile in the colour of its sequence; hatched: masked, not loaded.

    The dashed frame is what an attention would walk over that takes every sequence to the longest one's end.
    Raises ValueError when tile does not divide the stage's block size.
    """
    if stage.block_size % tile:
        raise ValueError(f"tile must divide block_size={stage.block_size}, got {tile}")
    heads, lengths = stage.config.num_kv_heads, [seq.num_cached_tokens for seq in seqs]
    width = max(-(-n // stage.block_size) for n in lengths) * stage.block_size
    fig, ax = plt.subplots(figsize=(9, 0.16 * heads * len(seqs) + 1.2), layout="constrained")
    for i, seq in enumerate(seqs):
        for head in range(heads):
            _draw_program(ax, seq.num_cached_tokens, i * heads + head, tile, PALETTE[i % len(PALETTE)])
        for index, block in enumerate(stage.tables.of(seq.seq_id, layer)):
            if index * stage.block_size < seq.num_cached_tokens:
                middle = (index + 0.5) * stage.block_size, (i + 0.5) * heads - 0.5
                ax.text(*middle, f"block {block}", ha="center", va="center", fontsize=8, color=INK, bbox=LABEL)
    rows = heads * len(seqs)
    ax.add_patch(Rectangle((0, -0.5), width, rows, fill=False, edgecolor=PALETTE[3], linestyle="--", linewidth=1.5))
    ax.set(
        xlabel="cached token", xlim=(-1, width + 1), ylim=(rows - 0.3, -0.7), ylabel=f"sequence ({heads} programs each)"
    )
    ax.set_yticks([(i + 0.5) * heads - 0.5 for i in range(len(seqs))], [f"{i}" for i in range(len(seqs))])
    ax.grid(False)
    tiles = sum(-(-n // tile) for n in lengths) * heads
    return figure_alt(
        fig,
        f"{rows} programs, {heads} for each of {len(seqs)} sequences with {lengths} cached tokens: they walk over "
        f"{tiles} tiles of {tile} tokens. To the longest sequence's end for all of them it would be "
        f"{rows * width // tile}.",
    )


def _draw_program(ax: Axes, num_cached: int, row: int, tile: int, colour: str) -> None:
    for start in range(0, num_cached, tile):
        loaded = min(tile, num_cached - start)
        ax.add_patch(Rectangle((start, row - 0.4), loaded, 0.8, facecolor=colour, edgecolor="none", alpha=0.6))
        if loaded < tile:
            masked = Rectangle(
                (start + loaded, row - 0.4), tile - loaded, 0.8, fill=False, edgecolor=EDGE, hatch="////"
            )
            masked.set_linewidth(0)
            ax.add_patch(masked)
        ax.add_patch(Rectangle((start, row - 0.4), tile, 0.8, fill=False, edgecolor=EDGE, linewidth=0.6))
