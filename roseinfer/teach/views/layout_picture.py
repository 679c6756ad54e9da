"""draw_layouts: one block of a pool in the order of memory, in two layouts, and what one head reads of it."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from roseinfer.display.figure import INK, PALETTE, Picture, figure_alt

EDGE = "#808080"
OTHERS = "#EEEEEE"


def draw_layouts(num_kv_heads: int, block_size: int, head_dim: int, bytes_per_value: int, head: int = 0) -> Picture:
    """A box is what one KV head keeps of one token, head_dim values; the number is the token's. Coloured: `head`'s.

    Raises ValueError for a head that is not there.
    """
    if head not in range(num_kv_heads):
        raise ValueError(f"head must be 0 to {num_kv_heads - 1}, got {head!r}")
    box, block = head_dim * bytes_per_value, num_kv_heads * block_size
    by_token = [divmod(i, num_kv_heads) for i in range(block)]  # (token, head) in the order of memory
    by_head = [divmod(i, block_size)[::-1] for i in range(block)]
    fig, (above, below) = plt.subplots(2, 1, figsize=(10, 2.4), layout="constrained", sharex=True)
    _draw(above, by_token, head, f"token-major, [{block_size}, {num_kv_heads}, {head_dim}]")
    _draw(below, by_head, head, f"head-major, [{num_kv_heads}, {block_size}, {head_dim}]")
    below.set_xlabel(f"bytes from the beginning of the block; a box: {head_dim} values of one head, {box} bytes")
    ticks = range(0, block + 1, num_kv_heads)
    below.set_xticks(list(ticks), [f"{tick * box:,}" for tick in ticks], fontsize=8)
    return figure_alt(
        fig,
        f"One block of {block_size} tokens with {num_kv_heads} KV heads in the order of memory. Of it head {head} "
        f"reads, token-major, {block_size} pieces of {box} bytes, one every {num_kv_heads * box} bytes; head-major, "
        f"one piece of {block_size * box:,} bytes.",
    )


def _draw(ax: Axes, order: list[tuple[int, int]], head: int, title: str) -> None:
    for at, (token, owner) in enumerate(order):
        colour = PALETTE[0] if owner == head else OTHERS
        ax.add_patch(Rectangle((at, 0), 1, 1, facecolor=colour, edgecolor=EDGE, linewidth=0.6))
        ink = "white" if owner == head else INK
        ax.text(at + 0.5, 0.5, str(token), ha="center", va="center", fontsize=7, color=ink)
    ax.set(xlim=(-0.2, len(order) + 0.2), ylim=(-0.1, 1.1))
    ax.set_title(title, fontsize=10, loc="left")
    ax.set_yticks([])
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_visible(False)
