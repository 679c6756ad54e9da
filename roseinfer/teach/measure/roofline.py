"""roofline: each stage's measured step against what this machine's memory and arithmetic allow."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.display import display

from roseinfer.bench import LadderResult
from roseinfer.display.roofline import roofline_chart
from roseinfer.display.table import Table

from .race import race

if TYPE_CHECKING:
    import pandas as pd

    from roseinfer.models import Model
    from roseinfer.stage import Stage

FLOOR = "floor"
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


class Roofline:
    """What `roofline` returns: a chart, and a table of the same points below it.

    points: the floor first, then the stages in the order of the race.
    """

    def __init__(self, result: LadderResult) -> None:
        least = result.floor["weight_bytes"] + result.floor["kv_bytes"]
        flops = result.floor["flops"]
        counted = [row for row in result.rows if "bytes_copied" in row]
        names = [row["stage"] for row in result.rows]
        if not counted:
            raise ValueError(f"result must hold a stage whose bytes were counted, got {names}")
        self.points = [Point(FLOOR, least, flops, result.floor["seconds"])] + [
            Point(row["stage"], least + 2 * row["bytes_copied"] + row["bytes_filled"], flops, row["step_ms"] / 1e3)
            for row in counted
        ]
        self.bytes_per_s, self.peak = result.machine["read_bytes_per_s"], result.machine["flops_per_s"]
        ridge = self.peak / self.bytes_per_s
        note = (
            f"{result.device}: reads {self.bytes_per_s / 1e9:,.1f} GB/s, computes {self.peak / 1e9:,.0f} GFLOP/s; they "
            f"meet at {ridge:.1f} flops a byte. Bytes: the floor's, and those of the stage's own copies and fills"
        )
        if left_out := [name for name in names if name not in [point.name for point in self.points]]:
            note += f". Not counted, so without a point: {', '.join(left_out)}"
        title = f"Roofline of one decode step: {result.title}"
        frame = self._frame(ridge)
        self.table = Table(
            frame, exact=EXACT, live=LIVE, title=title, note=note, formats=FORMATS, bars=["of the roof"]
        )  # fmt: skip
        self.chart = roofline_chart(frame, self.bytes_per_s, self.peak, title)

    def roof(self, intensity: float) -> float:
        """Flops a second at most, for a step of so many flops a byte."""
        return min(self.peak, self.bytes_per_s * intensity)

    def __repr__(self) -> str:
        return repr(self.table)

    def _ipython_display_(self) -> None:
        display(self.chart, self.table)

    def _frame(self, ridge: float) -> pd.DataFrame:
        import pandas as pd

        rows = [
            {
                "step": p.name, "bytes": p.bytes, "flops": p.flops, "flops per byte": p.intensity,
                "step ms": 1e3 * p.seconds, "GB/s": p.bytes / p.seconds / 1e9, "GFLOP/s": p.flops_per_s / 1e9,
                "of the roof": p.flops_per_s / self.roof(p.intensity),
                "the roof here": "bandwidth" if p.intensity < ridge else "compute",
            }
            for p in self.points
        ]  # fmt: skip
        return pd.DataFrame(rows)
