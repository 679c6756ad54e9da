"""The GPU report of one machine, in one file under data/runs: floors, kernels, tokens, graphs, traces and ladders.

- run_report(course, plan, ...) -> GpuReport: run the parts, writing the file after each
- FULL, QUICK: what `make gpu-report` runs
- summary(data, width): a report for a terminal; kernel_table(data["kernel_times"]): one of its tables
"""

from .context import Course
from .engines import ENGINES, EagerEngine
from .plan import FULL, QUICK, KernelShape, LadderShape, Plan, Size, TimedShape
from .run import FORMAT, KIND, GpuReport, run_report
from .summary import kernel_table, summary

__all__ = [
    "ENGINES", "FORMAT", "FULL", "KIND", "QUICK", "Course", "EagerEngine", "GpuReport", "KernelShape", "LadderShape",
    "Plan", "Size", "TimedShape", "kernel_table", "run_report", "summary",
]  # fmt: skip
