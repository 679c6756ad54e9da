"""Pictures that a lesson draws from its own objects: blocks, the gather, the append. Each has alt text."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from roseinfer.display.chart import INK, Chart
from roseinfer.display.figure import PALETTE, Picture, figure_alt
from roseinfer.models import ModelConfig
from roseinfer.profiling import Machine, decode_floor
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

EDGE = "#808080"


def draw_recompute(prompt_len: int, new_tokens: int) -> Picture:
    """Tokens that each step has to compute, without a cache and with one."""
    steps = range(new_tokens)
    without = [prompt_len + step for step in steps]
    with_cache = [prompt_len] + [1] * (new_tokens - 1)
    fig, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
    ax.bar(steps, without, color=PALETTE[1], label=f"no cache: {sum(without)} in all")
    ax.bar(steps, with_cache, color=PALETTE[0], label=f"KV cache: {sum(with_cache)} in all")
    ax.set(xlabel="step (0 is the prefill)", ylabel="tokens computed")
    ax.legend(frameon=False, loc="upper left")
    return figure_alt(
        fig,
        f"Bar chart of tokens computed at each of {new_tokens} steps after a prompt of {prompt_len}: without a cache "
        f"{without[0]} rising to {without[-1]}, {sum(without)} in all; with a cache {prompt_len} once, then 1 a step, "
        f"{sum(with_cache)} in all.",
    )


def draw_floors(shapes: dict[str, ModelConfig], machine: Machine, batch_sizes: List[int], context_len: int) -> Chart:
    """Tokens a second that one decode step could reach here at most, against the batch size, for each shape."""
    import altair as alt

    rows = [
        {"shape": name, "batch size": b, "tok/s": b / floor.seconds, "bound by": floor.bound}
        for name, config in shapes.items()
        for b in batch_sizes
        if (floor := decode_floor(config, [context_len] * b, machine.dtype, machine)).seconds
    ]
    chart = alt.Chart(alt.Data(values=rows), width=460, height=240).encode(
        alt.X("batch size:Q", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=batch_sizes)),
        alt.Y("tok/s:Q", title="tokens/s at most", scale=alt.Scale(type="log"), axis=alt.Axis(format=",")),
        color=alt.Color("shape:N", sort=None, legend=None),
        tooltip=["shape:N", "batch size:Q", alt.Tooltip("tok/s:Q", format=",.0f"), "bound by:N"],
    )
    lines = chart.mark_line() + chart.mark_point(filled=True, size=50, opacity=1)
    names = chart.transform_filter(f"datum['batch size'] == {max(batch_sizes)}")
    return Chart(
        lines + names.mark_text(align="left", dx=8).encode(text="shape:N", color=alt.value(INK)),
        f"The most tokens a second that decoding could reach on this machine, for {', '.join(shapes)}, at batch sizes "
        f"{', '.join(map(str, batch_sizes))} and {context_len} tokens of context. First it grows with the batch, "
        "because the weights are read once for all sequences; then arithmetic or the caches become the limit.",
    )


def draw_gather(stage: Stage, seqs: List[Sequence], layer: int = 0) -> Picture:
    """Left: the blocks of one layer. Right: the padded batch [B, H_kv, T, D] that a dense stage gathers from them.

    A token is as wide on the left as on the right.
    """
    longest = max(seq.num_cached_tokens for seq in seqs)
    width = -(-longest // stage.block_size) * stage.block_size
    height = 0.55 * len(seqs) + 1.3
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, height), layout="constrained", sharex=True, sharey=True)
    for row, seq in enumerate(seqs):
        colour = PALETTE[row % len(PALETTE)]
        for j, block in enumerate(stage.tables.of(seq.seq_id, layer)):
            start = j * stage.block_size
            filled = min(stage.block_size, max(0, seq.num_cached_tokens - start))
            draw_box(left, start, row, filled, colour)
            draw_box(left, start, row, stage.block_size, "none")
            left.text(start + stage.block_size / 2, row, f"block {block}", ha="center", va="center", fontsize=8)
        draw_box(right, 0, row, seq.num_cached_tokens, colour)
        if seq.num_cached_tokens < longest:
            draw_box(right, seq.num_cached_tokens, row, longest - seq.num_cached_tokens, "none", hatch="////")
        right.text(longest * 1.02, row, f"{longest - seq.num_cached_tokens} padding", va="center", fontsize=8)
    left.set(title=f"layer {layer}: blocks, kept one by one", xlabel="token", ylabel="sequence")
    right.set(title=f"gathered: one batch, padded to T = {longest}", xlabel="token")
    right.set(xlim=(0, max(width * 1.01, longest * 1.25)))  # of both
    left.set(yticks=range(len(seqs)), ylim=(len(seqs) - 0.4, -0.6))
    for ax in (left, right):
        ax.grid(False)  # its lines would cross the texts
    lengths = [seq.num_cached_tokens for seq in seqs]
    padding = sum(longest - n for n in lengths)
    return figure_alt(
        fig,
        f"Blocks of {len(seqs)} sequences with {lengths} cached tokens, gathered into a batch of "
        f"{len(seqs)} x {longest}: {sum(lengths)} tokens of content and {padding} of padding.",
    )


def draw_append(batch_size: int, num_tokens: int) -> Picture:
    """The batch after attention, [B, H_kv, T + 1, D], and two ways to take the new column out of it."""
    fig, axes = plt.subplots(1, 2, figsize=(10, 0.3 * batch_size + 1.2), layout="constrained", sharey=True)
    for ax, title in zip(axes, ("02: a cut for each sequence", "03: one select for all of them"), strict=True):
        for row in range(batch_size):
            for token in range(num_tokens + 1):
                draw_box(ax, token, row, 1, PALETTE[0] if token == num_tokens else "none")
        ax.set(title=title, xlabel=f"token (new one at {num_tokens})", xlim=(-0.5, num_tokens + 1.5))
    for row in range(batch_size):
        _outline(axes[0], num_tokens, row, 1)
    _outline(axes[1], num_tokens, 0, batch_size)
    axes[0].set(ylabel="sequence", ylim=(batch_size - 0.2, -0.8), yticks=range(batch_size))
    return figure_alt(
        fig,
        f"A batch of {batch_size} sequences by {num_tokens + 1} tokens. On the left the new token is cut out "
        f"{batch_size} times, once a sequence; on the right its column is selected once.",
    )


def draw_box(ax: Axes, x: float, row: int, width: float, colour: str, hatch: str = "") -> None:
    ax.add_patch(
        Rectangle((x, row - 0.4), width, 0.8, facecolor=colour, edgecolor=EDGE, hatch=hatch, linewidth=0.8, alpha=0.75)
    )


def _outline(ax: Axes, x: float, row: int, height: int) -> None:
    ax.add_patch(Rectangle((x - 0.1, row - 0.48), 1.2, height - 0.04, fill=False, edgecolor=PALETTE[1], linewidth=2))
