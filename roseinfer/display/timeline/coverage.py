"""Share of each column of a picture that a lane's slices cover: it shows slices too thin to draw."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from roseinfer.profiling.traces.chrome import Slice

from .gaps import Gap


class Column(NamedTuple):
    """ts, end: in ns. share: of the column that is covered. name: of the slices that cover most of it."""

    ts: int
    end: int
    name: str
    share: float


def coverage(slices: Sequence[Slice | Gap], start: int, end: int, num_columns: int) -> list[Column]:
    """Divide start..end into columns of equal width, without those that no slice touches. Overlaps count once."""
    edges = [start + (end - start) * i // num_columns for i in range(num_columns + 1)]
    times: dict[int, Counter[str]] = defaultdict(Counter)
    covered = start
    for event in sorted(slices, key=lambda event: event.ts):
        at, stop = max(event.ts, covered), min(event.end, end)
        while at < stop:
            column = bisect_right(edges, at) - 1
            upto = min(stop, edges[column + 1])
            times[column][event.name] += upto - at
            at = upto
        covered = max(covered, at)
    return [
        Column(edges[i], edges[i + 1], names.most_common(1)[0][0], names.total() / (edges[i + 1] - edges[i]))
        for i, names in sorted(times.items())
    ]
