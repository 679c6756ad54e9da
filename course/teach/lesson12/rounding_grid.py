"""walk_rounding: a row of values with an outlier on the int8 grids of one scale, and of a scale per group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from roseinfer.arguments import each_once, require_count
from roseinfer.display.chart import Chart

from .rounding_chart import chart_of
from .text_price import LEVELS

SHORTEST, LONGEST = 16, 256  # values of a row that can be drawn
TIMES_DECIMALS = 2  # the slider has its value beside it
SCALE_BYTES = 4  # a scale is in float32


@dataclass(frozen=True)
class Rounded:
    """What rounding a row with a scale for each `group` values costs, counted and measured.

    zeros: values that become 0. error: the mean of |x - rounded| / |x|. bytes_per_value: with the scales.
    """

    group: int
    zeros: int
    error: float
    bytes_per_value: float


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
    settings = [rounded(values, size) for size in sizes]
    return Chart(chart_of(values, place, other, times, sizes), _facts(len(values), times, settings))


def rounded(values: Sequence[float], group: int) -> Rounded:
    errors, zeros = [], 0
    starts = range(0, len(values), group)
    for start in starts:
        part = values[start : start + group]
        step = max(map(abs, part)) / LEVELS
        for value in filter(None, part):
            level = round(value / step)
            zeros += level == 0
            errors.append(abs(value - level * step) / abs(value))
    return Rounded(group, zeros, sum(errors) / len(errors), 1 + SCALE_BYTES * len(starts) / len(values))


def _facts(length: int, times: float, settings: list[Rounded]) -> str:
    lines = [f"{length} values, the outlier {times:.1f} times the largest other one"]
    for one in settings:
        shared = "one scale for the row" if one.group == length else f"a scale for {one.group}"
        lines.append(
            f"{shared}: {one.zeros} of {length} round to 0, mean relative error {one.error:.1%}, "
            f"{one.bytes_per_value:.4f} bytes per value"
        )
    return "\n".join(lines)
