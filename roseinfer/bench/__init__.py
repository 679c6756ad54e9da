"""Benchmarks: interleaved measuring, and the ladder of all stages on the same prompts.

- measure(contenders, repeats=...) -> samples: run contenders in turn, raw samples kept
- ladder(stages, model, ...) -> LadderResult: times, exact counts and the floor beside each other
"""

from .contenders import ContenderFailed
from .interleave import Run, RunProgress, Stopwatch, measure
from .ladder import ladder
from .ladder_result import LadderResult
from .token_check import TokensDiffer

__all__ = [
    "ContenderFailed", "LadderResult", "RunProgress", "Run", "Stopwatch", "TokensDiffer", "ladder", "measure",
]  # fmt: skip
