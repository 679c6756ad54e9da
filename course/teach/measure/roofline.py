"""roofline: each stage's measured step against what this machine's memory and arithmetic allow."""

from __future__ import annotations

from IPython.display import display

from course.display.roofline import roofline_chart
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.display.table import Table
from roseinfer.profiling.floors import ARITHMETIC, READING

FLOOR = "floor"
FORMATS = {
    "bytes": "{:,}",
    "flops": "{:,}",
    "flops per byte": "{:.3f}",
    "step ms": "{:,.3f}",
    "GB/s": "{:,.2f}",
    "GFLOP/s": "{:,.2f}",
    "of the roof": "{:.1%}",
}
EXACT = ["step", "bytes", "flops", "flops per byte"]
LIVE = ["step ms", "GB/s", "GFLOP/s", "of the roof", "the roof here"]


class Roofline:
    """The median step of each stage of a race, and the step's floor, under the machine's two ceilings: chart and table.

    Args:
        result: what teach.race or bench.ladder returned.

    A stage's bytes are those of the floor, and what its own copies read and write (twice bytes copied) and its fills
    write; its flops are the floor's, as all stages compute the same. transformers' bytes are not counted, so it has no
    point. Raises ValueError for a result without a counted stage.
    """

    def __init__(self, result: LadderResult) -> None:
        import pandas as pd

        counted = [row for row in result.rows if "bytes_copied" in row]
        others = [row["stage"] for row in result.rows if row not in counted]
        if not counted:
            raise ValueError(f"result must hold a stage whose bytes were counted, got {others}")
        floor, slope, peak = result.floor, result.machine["read_bytes_per_s"], result.machine["flops_per_s"]
        least = floor["weight_bytes"] + floor["kv_bytes"]
        points = [(FLOOR, least, 1e3 * floor["seconds"])] + [
            (row["stage"], least + 2 * row["bytes_copied"] + row["bytes_filled"], row["step_ms"]) for row in counted
        ]
        frame = pd.DataFrame(points, columns=["step", "bytes", "step ms"])
        frame.insert(2, "flops", floor["flops"])
        frame.insert(3, "flops per byte", frame["flops"] / frame["bytes"])
        frame["GB/s"], frame["GFLOP/s"] = (frame[name] / frame["step ms"] / 1e6 for name in ("bytes", "flops"))
        roof = (slope * frame["flops per byte"]).clip(upper=peak)
        frame["of the roof"] = 1e9 * frame["GFLOP/s"] / roof
        frame["the roof here"] = [ARITHMETIC if at == peak else READING for at in roof]

        note = (
            f"{result.device}: reads the floor's {least / 1e6:,.1f} MB, again at every step, at {slope / 1e9:,.1f} "
            f"GB/s, computes {peak / 1e9:,.0f} GFLOP/s; they meet at {peak / slope:.1f} flops a byte. Bytes: the "
            f"floor's, and those of the stage's own copies and fills"
        )
        if others:
            note += f". Not counted, so without a point: {', '.join(others)}"
        title = f"Roofline of one decode step: {result.title}"
        self.table = Table(frame, exact=EXACT, live=LIVE, title=title, note=note, formats=FORMATS, bars=["of the roof"])
        self.chart = roofline_chart(frame, slope, peak, title)

    def __repr__(self) -> str:
        return repr(self.table)

    def _ipython_display_(self) -> None:
        display(self.chart, self.table)
