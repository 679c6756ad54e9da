"""draw_flat_batch: prompts of mixed lengths as one row of tokens, beside the padded batch that it replaces."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from roseinfer.display.figure import INK, PALETTE, Picture, figure_alt

from .pictures import EDGE, draw_box


def draw_flat_batch(query_start: List[int]) -> Picture:
    """query_start [B + 1]: where each sequence begins in the flat batch, and the end. Last rows have a thick frame.

    Raises ValueError when it does not begin with 0 and grow.
    """
    starts = [int(n) for n in query_start]
    lengths = [end - start for start, end in zip(starts, starts[1:], strict=False)]
    if not lengths or starts[0] != 0 or min(lengths) < 1:
        raise ValueError(f"query_start must begin with 0 and grow, got {starts}")
    total, longest = starts[-1], max(lengths)
    heights = [len(lengths) + 0.6, 1.6]
    fig, (padded, flat) = plt.subplots(
        2, 1, figsize=(8.6, 0.32 * sum(heights) + 1.7), layout="constrained", height_ratios=heights
    )
    for row, n in enumerate(lengths):
        for token in range(longest):
            _token(padded, token, row, row, is_pad=token >= n, is_last=token == n - 1)
        for token in range(n):
            _token(flat, starts[row] + token, 0, row, is_last=token == n - 1)
    padded.set(title=f"padded: {len(lengths)} x {longest} = {len(lengths) * longest} rows", xlabel="position")
    padded.set(ylim=(len(lengths) - 0.3, -0.7), yticks=range(len(lengths)), ylabel="sequence")
    flat.set(title=f"flat: {total} rows", xlabel="query_start, and row of the batch", ylim=(0.7, -0.7), yticks=[])
    flat.set_xticks(starts, [str(n) for n in starts])
    for ax, width in ((padded, longest), (flat, total)):
        ax.set(xlim=(-0.2, width + 0.2))
        ax.grid(False)
    last = [n - 1 for n in starts[1:]]
    return figure_alt(
        fig,
        f"Prompts of {lengths} tokens. Padded, they are {len(lengths)} x {longest} = {len(lengths) * longest} rows; "
        f"flat, {total}. query_start is {starts}, the last rows are {last}.",
    )


def _token(ax: Axes, x: float, row: int, seq: int, is_pad: bool = False, is_last: bool = False) -> None:
    draw_box(ax, x, row, 1, "none" if is_pad else PALETTE[seq % len(PALETTE)], hatch="////" if is_pad else "")
    if is_last:
        box = ax.patches[-1]
        box.set(linewidth=2.5, edgecolor=INK, zorder=3)
    elif is_pad:
        ax.patches[-1].set(edgecolor=EDGE)
