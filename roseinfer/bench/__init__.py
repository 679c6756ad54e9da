"""Benchmarks: interleaved measuring, and the ladder of all stages on the same prompts.

- interleaved(contenders, repeats=...) -> samples: call anything in turn
- measure(contenders, repeats=...) -> samples: the same for whole runs, with tokens, steps and progress
- ladder(stages, model, ...) -> LadderResult: times, exact counts and the floor beside each other
"""

from .contenders import ContenderFailed
from .interleave import Run, RunProgress, interleaved, measure
from .ladder import ladder
from .ladder_result import LadderResult
from .token_check import TokensDiffer

__all__ = [
    "ContenderFailed",
    "LadderResult",
    "RunProgress",
    "Run",
    "TokensDiffer",
    "interleaved",
    "ladder",
    "measure",
]
