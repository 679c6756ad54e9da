"""say_speeds: which stage decodes faster, in sentences that follow from measured times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roseinfer.bench.ladder_result import LadderResult
from roseinfer.bench.verdict import OVERLAP
from roseinfer.display.table import Table

from ..views.said import Said, say

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 1.1  # stages that differ by no more are called about as fast
SLOWER = round(1 / CLOSE, 2)


def say_speeds(result: LadderResult | Table, *reasons: str) -> Said:
    """Compare the speed of each stage with the first in sentences: of a race, or of each batch of teach.compare_shapes.

    reasons: sentences that explain the counts, and hold on every machine.
    Raises ValueError for a table without the columns batch, stage and speed.
    """
    if isinstance(result, LadderResult):
        first, *others = result.rows
        sentences = [
            _sentence(row["stage"], row["vs_first"], first["stage"], row.get("verdict") == OVERLAP) for row in others
        ]
    elif {"batch", "stage", "speed"} <= set(result.df.columns):
        sentences = _by_batch(result.df)
    else:
        raise ValueError(f"result must have the columns batch, stage and speed, got {list(result.df.columns)}")
    return say("which stage decodes faster", *sentences, *reasons)


def _by_batch(rows: pd.DataFrame) -> list[str]:
    first = rows["stage"].iloc[0]
    sentences = []
    for stage, own in rows[rows["stage"] != first].groupby("stage", sort=False):
        ratios = {batch: round(ratio, 2) for batch, ratio in zip(own["batch"], own["speed"], strict=True)}
        parts = {
            "faster on": {batch: ratio for batch, ratio in ratios.items() if ratio > CLOSE},
            "slower on": {batch: ratio for batch, ratio in ratios.items() if ratio < SLOWER},
            "about as fast on": {batch: ratio for batch, ratio in ratios.items() if SLOWER <= ratio <= CLOSE},
        }
        told = "; ".join(f"{verdict} {_told(batches)}" for verdict, batches in parts.items() if batches)
        sentences.append(f"**{stage}** against {first}: {told}.")
    return sentences


def _told(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{batch} ({_times(ratio)})" for batch, ratio in ratios.items())


def _sentence(stage: str, ratio: float, first: str, overlaps: bool) -> str:
    if overlaps and not SLOWER <= ratio <= CLOSE:
        return f"**{stage}** against {first}: the runs overlap, so this race shows no difference ({_times(ratio)})."
    if SLOWER <= ratio <= CLOSE:
        return f"**{stage}** and {first} decode about as fast here ({_times(ratio)})."
    return f"**{stage}** is **{'faster' if ratio > 1 else 'slower'}** than {first} here: {_times(ratio)} its speed."


def _times(ratio: float) -> str:
    return f"×{ratio:.2f}"
