"""The GPU report: floors, kernel checks, tokens, traces and ladders of one machine, in one file under data/runs.

- run_report(course, plan, ...) -> Report: run the parts, writing the file after each
- FULL, QUICK: what `make gpu-report` runs
- print_summary(data): a report for a terminal
"""

from .context import Course
from .plan import FULL, QUICK, KernelShape, LadderShape, Plan, Size, TimedShape
from .run import FORMAT, KIND, Report, run_report
from .summary import print_summary

__all__ = [
    "FORMAT", "FULL", "KIND", "QUICK", "Course", "KernelShape", "LadderShape", "Plan", "Report", "Size", "TimedShape",
    "print_summary", "run_report",
]  # fmt: skip
