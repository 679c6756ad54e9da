"""roofline: each stage's measured step against what this machine's memory and arithmetic allow.

The roofline model: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 2009.
"""

from __future__ import annotations

import html
from collections.abc import Sequence as List
from dataclasses import dataclass
from math import atan2, ceil, degrees, floor, log10
from typing import TYPE_CHECKING, Any

from roseinfer.bench import LadderResult
from roseinfer.display.figure import PALETTE
from roseinfer.display.table import Table
from roseinfer.display.view import View, card

from .race import race

if TYPE_CHECKING:
    from roseinfer.models import Model
    from roseinfer.stage import Stage

FLOOR = "floor"
WIDTH, HEIGHT = 640, 300  # pixels of the picture
MARK = 18
REACHABLE = "rgba(86, 180, 233, 0.25)"
AT = "position: absolute; font-size: 12px; white-space: nowrap"
FORMATS = {
    "bytes": "{:,}", "flops": "{:,}", "flops per byte": "{:.3f}",
    "step ms": "{:,.3f}", "GB/s": "{:,.2f}", "GFLOP/s": "{:,.2f}", "of the roof": "{:.1%}",
}  # fmt: skip
EXACT = ["step", "bytes", "flops", "flops per byte"]
LIVE = ["step ms", "GB/s", "GFLOP/s", "of the roof", "the roof here"]


@dataclass(frozen=True)
class Point:
    """One way to run a step: what it moves and computes, and how long it took."""

    name: str
    bytes: int
    flops: int
    seconds: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds


def roofline(result: LadderResult | List[type[Stage]], model: Model | None = None, **sizes: Any) -> Roofline:
    """The median step of each stage of a race, and the step's floor, under the machine's two ceilings.

    result: what teach.race or bench.ladder returned, or stages, which are then raced on `model`; sizes: race's
    arguments, such as batch_size. A stage's bytes are those of the floor, and what its own copies read and write (twice
    bytes copied) and its fills write; its flops are the floor's, for all stages compute the same. transformers' bytes
    are not counted, so it has no point. Raises ValueError for a result without a counted stage, for stages without a
    model, and for a model beside a result.
    """
    if not isinstance(result, LadderResult):
        if model is None:
            raise ValueError("model must be given with stages: roofline(stages, model), or roofline(result) of a race")
        result = race(result, model, **sizes)
    elif model is not None or sizes:
        raise ValueError("result has been measured: roofline(result) takes neither a model nor sizes")
    return Roofline(result)


class Roofline(View):
    """What `roofline` returns. points: the floor first, then the stages in the order of the race."""

    def __init__(self, result: LadderResult) -> None:
        least = result.floor["weight_bytes"] + result.floor["kv_bytes"]
        flops = result.floor["flops"]
        counted = [row for row in result.rows if "bytes_copied" in row]
        if not counted:
            names = [row["stage"] for row in result.rows]
            raise ValueError(f"result must hold a stage whose bytes were counted, got {names}")
        self.points = [Point(FLOOR, least, flops, result.floor["seconds"])] + [
            Point(row["stage"], least + 2 * row["bytes_copied"] + row["bytes_filled"], flops, row["step_ms"] / 1e3)
            for row in counted
        ]
        self.not_counted = [row["stage"] for row in result.rows if "bytes_copied" not in row]
        self.bytes_per_s, self.peak = result.machine["read_bytes_per_s"], result.machine["flops_per_s"]
        self.title = f"Roofline of one decode step: {result.title}"
        self.device = result.device

    def roof(self, intensity: float) -> float:
        """Flops a second at most, for a step of so many flops a byte."""
        return min(self.peak, self.bytes_per_s * intensity)

    def __repr__(self) -> str:
        return repr(self._table())

    def to_html(self) -> str:
        return card(self._picture() + self._table().to_html())

    def _table(self) -> Table:
        import pandas as pd

        ridge = self.peak / self.bytes_per_s
        rows = [
            {
                "step": p.name, "bytes": p.bytes, "flops": p.flops, "flops per byte": p.intensity,
                "step ms": 1e3 * p.seconds, "GB/s": p.bytes / p.seconds / 1e9, "GFLOP/s": p.flops_per_s / 1e9,
                "of the roof": p.flops_per_s / self.roof(p.intensity),
                "the roof here": "bandwidth" if p.intensity < ridge else "compute",
            }
            for p in self.points
        ]  # fmt: skip
        note = (
            f"{self.device}: reads {self.bytes_per_s / 1e9:,.1f} GB/s, computes {self.peak / 1e9:,.0f} GFLOP/s; they "
            f"meet at {ridge:.1f} flops a byte. Bytes: the floor's, and those of the stage's own copies and fills"
        )
        if self.not_counted:
            note += f". Not counted, so without a point: {', '.join(self.not_counted)}"
        frame, bars = pd.DataFrame(rows), ["of the roof"]
        return Table(frame, exact=EXACT, live=LIVE, title=self.title, note=note, formats=FORMATS, bars=bars)

    def _picture(self) -> str:
        """Divs alone, which JupyterLab keeps in a notebook that has not been run yet."""
        scale = _Scale(self)
        ridge, left = self.peak / self.bytes_per_s, 10**scale.x_from
        under = [
            _area(scale.box(left, 10**scale.y_from, ridge, self.bytes_per_s * left)),
            _area(scale.box(left, self.bytes_per_s * left, ridge, self.peak), slope=True),
            _area(scale.box(ridge, 10**scale.y_from, 10**scale.x_to, self.peak)),
        ]
        marks = [self._mark(i, point, scale) for i, point in enumerate(self.points)]
        frame = f"position: relative; width: {WIDTH}px; height: {HEIGHT}px; margin: 0 0 2.6em 5em"
        border = "border-left: 1px solid #888888; border-bottom: 1px solid #888888"
        label = html.escape(f"{self!r}", quote=True)
        return (
            "<p>GFLOP/s against flops per byte, both logarithmic; shaded: what this machine can reach</p>"
            f'<div role="img" aria-label="{label}" style="{frame}; {border}">{"".join(under)}{scale.labels()}'
            f"{self._ceilings(scale)}{''.join(marks)}</div>{self._legend()}"
        )

    def _ceilings(self, scale: _Scale) -> str:
        top = scale.y(self.peak)
        compute = f"{AT}; right: 4px; top: {max(0, top - 17):.0f}px"
        bandwidth = f"{AT}; left: 4px; top: 2px"
        return (
            f'<div style="{compute}">compute: {self.peak / 1e9:,.0f} GFLOP/s</div>'
            f'<div style="{bandwidth}">slope: bandwidth, {self.bytes_per_s / 1e9:,.1f} GB/s</div>'
        )

    def _mark(self, number: int, point: Point, scale: _Scale) -> str:
        left, top = scale.x(point.intensity) - MARK / 2, scale.y(point.flops_per_s) - MARK / 2
        style = f"{AT}; left: {left:.1f}px; top: {top:.1f}px; {_badge(number)}"
        title = f"{point.name}: {point.flops_per_s / 1e9:,.2f} GFLOP/s at {point.intensity:.3f} flops per byte"
        return f'<div style="{style}" title="{html.escape(title, quote=True)}">{_sign(number)}</div>'

    def _legend(self) -> str:
        entries = (
            f'<span style="display: inline-block; {_badge(i)}">{_sign(i)}</span> {html.escape(point.name)}'
            for i, point in enumerate(self.points)
        )
        return f"<p>{' &nbsp; '.join(entries)}</p>"


class _Scale:
    """Logarithmic axes, a factor of two beyond the points and the roof above them."""

    def __init__(self, view: Roofline) -> None:
        xs = [point.intensity for point in view.points] + [view.peak / view.bytes_per_s]
        self.x_from, self.x_to = log10(min(xs)) - 0.3, log10(max(xs)) + 0.3
        ys = [point.flops_per_s for point in view.points] + [view.peak, view.roof(10**self.x_from)]
        self.y_from, self.y_to = log10(min(ys)) - 0.3, log10(max(ys)) + 0.3

    def x(self, intensity: float) -> float:
        return WIDTH * (log10(intensity) - self.x_from) / (self.x_to - self.x_from)

    def y(self, flops_per_s: float) -> float:
        return HEIGHT * (self.y_to - log10(flops_per_s)) / (self.y_to - self.y_from)

    def box(self, left: float, bottom: float, right: float, top: float) -> tuple[float, float, float, float]:
        """left, top, width, height in pixels."""
        x, y = self.x(left), self.y(top)
        return x, y, self.x(right) - x, self.y(bottom) - y

    def labels(self) -> str:
        """Marks at 1, 2 and 5 times each power of ten."""
        below = f"{AT}; width: 40px; text-align: center; top: {HEIGHT + 4}px"
        across = "".join(
            f'<div style="{below}; left: {self.x(v) - 20:.1f}px">{v:g}</div>'
            for v in _round_numbers(self.x_from, self.x_to)
        )
        up = "".join(
            f'<div style="{AT}; right: {WIDTH + 6}px; top: {self.y(v) - 8:.1f}px">{v / 1e9:g}</div>'
            for v in _round_numbers(self.y_from, self.y_to)
        )
        return across + up


def _round_numbers(low: float, high: float) -> list[float]:
    powers = range(floor(low), ceil(high) + 1)
    return [v for power in powers for v in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if low < log10(v) < high]


def _area(box: tuple[float, float, float, float], slope: bool = False) -> str:
    left, top, width, height = box
    # At this angle the middle of the gradient is the diagonal. JupyterLab's sanitizer knows angles, not "to top left".
    angle = degrees(atan2(height, -width))
    paint = f"linear-gradient({angle:.2f}deg, transparent 50%, {REACHABLE} 50%)" if slope else REACHABLE
    size = f"left: {left:.1f}px; top: {top:.1f}px; width: {width:.1f}px; height: {height:.1f}px"
    return f'<div style="position: absolute; {size}; background: {paint}"></div>'


def _sign(number: int) -> str:
    return "F" if number == 0 else str(number)


def _badge(number: int) -> str:
    """A round, numbered mark; the floor's is square and grey."""
    colour, corner = ("#BBBBBB", 2) if number == 0 else (PALETTE[1:][(number - 1) % (len(PALETTE) - 1)], MARK // 2)
    return (
        f"width: {MARK}px; height: {MARK}px; line-height: {MARK}px; text-align: center; font-size: 12px; "
        f"border-radius: {corner}px; background-color: {colour}; color: #111111"
    )
