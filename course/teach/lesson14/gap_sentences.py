"""say_gaps: what a budget did to the gaps between tokens, and to the first token of the long prompt."""

from __future__ import annotations

from ..measure.request_run import Run
from ..views.run_charts import require_runs
from ..views.said import Said, say

MS = 1e3
CLOSE = 1.1  # times that differ by no more are called about as long


def say_gaps(before: Run, after: Run) -> Said:
    """Compare the longest gap between two tokens, and the longest time to a first token, of two runs by the wall clock.

    Raises ValueError for runs by different clocks.
    """
    require_runs((before, after))
    gaps, firsts = ([run.metrics()[name]["max"] for run in (before, after)] for name in ("itl", "ttft"))
    names = f"{before.name} and {after.name}"
    pays = " The long prompt pays: it comes in chunks." if firsts[1] > CLOSE * firsts[0] else ""
    return say(
        "what the budget does to gaps and to first tokens",
        f"**Longest gap between two tokens**, {names}: {_compared(*gaps)}.",
        f"**Longest time to a first token**: {_compared(*firsts)}.{pays}",
    )


def _compared(before: float, after: float) -> str:
    times = f"{MS * before:.0f} ms and {MS * after:.0f} ms"
    if max(before, after) <= CLOSE * min(before, after):
        return f"{times}, about as long"
    shorter = after < before
    ratio = before / after if shorter else after / before
    return f"{times}, {ratio:.1f} times {'shorter' if shorter else 'longer'}"
