"""draw_rows_built: when a block table's rows are built, step by step."""

from __future__ import annotations

from collections.abc import Sequence as List

import matplotlib.pyplot as plt

from roseinfer.display.figure import PALETTE, Picture, figure_alt


def draw_rows_built(runs: dict[str, List[int]]) -> Picture:
    """A panel a run: a bar a step, as high as the number of rows that the step built.

    runs: a name -> rows built by each step. Raises ValueError when there is none, or they differ in length.
    """
    if len({len(rows) for rows in runs.values()}) != 1:
        raise ValueError(f"runs must be of equal length, got { ({name: len(rows) for name, rows in runs.items()}) }")
    fig, axes = plt.subplots(
        len(runs), 1, figsize=(8, 0.6 + 1.2 * len(runs)), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for i, (ax, (name, rows)) in enumerate(zip(axes[:, 0], runs.items(), strict=True)):
        ax.bar(range(len(rows)), rows, width=1.0, color=PALETTE[i % len(PALETTE)])
        ax.set_title(f"{name}: {sum(rows)} rows in all", fontsize=9, loc="left")
        ax.set(ylabel="rows built")
    axes[-1, 0].set(xlabel="decode step")
    return figure_alt(fig, "Bars of rows built at each step. " + " ".join(map(_facts, runs, runs.values())))


def _facts(name: str, rows: List[int]) -> str:
    later = list(rows[1:])
    return (
        f"{name}: {sum(rows)} rows in {len(rows)} steps, {rows[0]} of them in the first; "
        f"after it at most {max(later, default=0)} in a step, and none in {later.count(0)}."
    )
