"""difference: do two sets of runs show one?"""

from __future__ import annotations

from collections.abc import Sequence

VERDICTS = {1: "faster", -1: "slower", 0: "no difference shown"}


def difference(before: Sequence[float], after: Sequence[float]) -> int:
    """1 or -1 where the figures of `after` are higher or lower than those of `before`; 0 where runs do not show it.

    They show it when their two ranges lie further apart than half the width of the wider one. Of the same thing, run
    three times and three times again, ranges that merely do not overlap come about one time in ten, and such ones one
    in forty (normal noise). A single run has no range, and shows nothing.
    """
    if min(len(before), len(after)) < 2:
        return 0
    widest = max(max(before) - min(before), max(after) - min(after))
    if min(after) - max(before) > widest / 2:
        return 1
    return -1 if min(before) - max(after) > widest / 2 else 0
