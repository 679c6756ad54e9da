"""verdict: what two sets of runs say about a difference, in words that do not claim more than was seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median

OVERLAP = "ranges overlap"


def difference(before: Sequence[float], after: Sequence[float]) -> int:
    """Return 1 where every figure of `after` is above every figure of `before`, -1 where every one is below, else 0.

    This is the extreme case of the rank-sum test (Wilcoxon, 1945), so its false alarms are known without assuming
    anything about the noise: see `chance`. A single run has no range, and shows nothing.
    """
    if min(len(before), len(after)) < 2:
        return 0
    return int(min(after) > max(before)) - int(max(after) < min(before))


def verdict(before: Sequence[float], after: Sequence[float], higher: str = "faster", lower: str = "slower") -> str:
    """Put `difference` in words: "faster in 3 of 3 runs", "ranges overlap", or "one run" where a side has just one."""
    if min(len(before), len(after)) < 2:
        return "one run"
    sign = difference(before, after)
    runs = f"in {len(after)} of {len(after)} runs"
    return {1: f"{higher} {runs}", -1: f"{lower} {runs}", 0: OVERLAP}[sign]


def chance(num_before: int, num_after: int) -> float:
    """Compute the probability that `difference` is not 0 for two sets of runs of the same code, in either direction.

    All orders of the runs are then equally likely, and only two of them keep the sets apart.
    """
    return min(1.0, 2 / comb(num_before + num_after, num_after))


def explanation(repeats: int) -> str:
    """Explain the verdicts of a table in the sentence that it shows once."""
    if repeats < 2:
        return "One run each: no verdict."
    odds = round(1 / chance(repeats, repeats))
    return (
        f"Faster in {repeats} of {repeats} runs: all of them beat every run of the other. The same code measured twice "
        f"gives such a verdict, faster or slower, 1 time in {odds}."
    )


def runs_text(repeats: int) -> str:
    return "1 run" if repeats == 1 else f"{repeats} interleaved runs"


def ratio_text(ratio: float, said: str | None) -> str:
    """Format a ratio with what its verdict says: "×2.91", or "~1.02" where the ranges overlap."""
    return f"{'~' if said == OVERLAP else '×'}{ratio:.2f}"


def spread(name: str, figures: Sequence[float]) -> dict[str, float]:
    """Return the median of runs under that name, with the least and the most beside it."""
    return {name: median(figures), f"{name}_min": min(figures), f"{name}_max": max(figures)}
