"""walk_rounding: a row of values with an outlier on the int8 grids of one scale, and of a scale per group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from roseinfer.arguments import each_once, require_count
from roseinfer.display.chart import Chart

from .rounding_chart import chart_of
from .text_price import rounded

SHORTEST, LONGEST = 16, 256  # values of a row that can be drawn
TIMES_DECIMALS = 2  # the slider has its value beside it
SCALE_BYTES = 4  # a scale is in float32


def walk_rounding(row: Tensor, groups: Sequence[int] = (64, 32, 16)) -> Chart:
    """Show a row, its values beside 0 on the grid that they are rounded to, and mark those that are rounded to 0.

    In the page a reader sets the outlier, the row's largest value, and how many values share a scale.

    row: 16 to 256 values; its outlier is rounded to 0.01 times the largest other value, as the slider shows it. groups:
    how many values may share a scale, besides the whole row.
    Values that are 0 before rounding are left out of the counts.
    Raises ValueError for another row, and for a group that is not smaller than the row or is there twice.
    """
    if row.ndim != 1 or not SHORTEST <= len(row) <= LONGEST:
        raise ValueError(f"row must be {SHORTEST} to {LONGEST} values [K], got shape {list(row.shape)}")
    if not row.isfinite().all():
        raise ValueError(f"row must be finite, got {row[~row.isfinite()][0].item()}")
    if int(row.count_nonzero()) < 2:
        raise ValueError("row must have at least two values that are not 0")
    for group in each_once("groups", groups):
        require_count("groups", group, 2, len(row) - 1)
    sizes = [len(row), *groups]
    values = [float(f"{value:.4g}") for value in row.tolist()]  # short in the recorded notebook
    place = max(range(len(values)), key=lambda i: abs(values[i]))
    other = max(abs(value) for i, value in enumerate(values) if i != place)
    times = round(abs(values[place]) / other, TIMES_DECIMALS)
    values[place] = times * other if values[place] > 0 else -times * other  # as the page computes it
    return Chart(chart_of(values, place, other, times, sizes), _facts(values, times, sizes))


def _facts(values: Sequence[float], times: float, sizes: Sequence[int]) -> str:
    """Say for each group size how many values become 0, the mean of |x - rounded| / |x|, and the bytes with scales."""
    row = torch.tensor(values, dtype=torch.float64)
    length, is_there = len(row), row != 0
    lines = [f"{length} values, the outlier {times:.1f} times the largest other one"]
    for group in sizes:
        got = rounded(row, group)
        zeros = int((is_there & (got == 0)).sum())
        error = float(((row - got) / row)[is_there].abs().mean())
        num_bytes = length + SCALE_BYTES * -(-length // group)
        shared = "one scale for the row" if group == length else f"a scale for {group}"
        lines.append(
            f"{shared}: {zeros} of {length} round to 0, "
            f"mean relative error {error:.1%}, {num_bytes / length:.4f} bytes per value"
        )
    return "\n".join(lines)
