"""say_losses: on which batches a stage is faster, on which it loses, from what compare_shapes measured."""

from __future__ import annotations

from roseinfer.display.table import Table
from roseinfer.stage import Stage

from ..views.said import Said, say

CLOSE = 1.05  # medians of a few steps that differ by no more show no difference


def say_losses(compared: Table, stage: type[Stage]) -> Said:
    """Compare a stage with the first stage of the table, batch by batch, and name the batches where it loses.

    Raises ValueError when the table has no row of the stage, or compares it with no other.
    """
    first = compared.df["stage"].iloc[0]
    rows = compared.df[compared.df["stage"] == stage.name]
    if rows.empty or stage.name == first:
        raise ValueError(f"the table must compare {stage.name} with a stage that comes first, it begins with {first}")
    speeds = dict(zip(rows["batch"], map(float, rows["speed"]), strict=True))
    slower = [batch for batch, speed in speeds.items() if speed * CLOSE < 1]
    least = min(speeds, key=speeds.__getitem__)
    verdict = (
        f"It loses on: {', '.join(slower)}." if slower else f"No batch here shows a loss. The lowest speed: {least}."
    )
    return say(
        f"{stage.name} against {first}",
        *(f"{batch}: ×{speed:.2f}, {_in_words(speed)}." for batch, speed in speeds.items()),
        f"**{verdict}**",
    )


def _in_words(speed: float) -> str:
    if max(speed, 1 / speed) <= CLOSE:
        return "too close to call from a few steps"
    return "faster" if speed > 1 else "slower"
