"""Benchmarks: interleaved measuring, and the ladder of all stages on the same prompts.

- measure(contenders, repeats=...) -> samples: run contenders in turn, raw samples kept
- ladder(stages, model, ...) -> LadderResult: times, exact counts and the floor beside each other
"""

from .contenders import ContenderFailed
from .ladder import ladder
from .referee import TokensDiffer
from .report import LadderResult
from .runner import Progress, Run, Stopwatch, measure

__all__ = [
    "ContenderFailed", "LadderResult", "Progress", "Run", "Stopwatch", "TokensDiffer", "ladder", "measure",
]  # fmt: skip
