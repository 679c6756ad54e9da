"""say_builds and build_ratio: what a cache of table rows gains away from an edge, and whether it loses at one."""

from __future__ import annotations

from roseinfer.display.table import Table

from ..views.said import Said, say

AWAY, EDGE = "away from an edge", "at an edge"
CLOSE = 1.1  # builds that differ by no more are called about as fast


def build_ratio(builds: Table, batch_size: int, step: str = AWAY) -> float:
    """Return how many times as fast as the first stage of teach.compare_builds the last one builds the tables.

    Raises ValueError for a batch or a step that was not measured.
    """
    rows = builds.df[(builds.df["batch"] == batch_size) & (builds.df["step"] == step)]
    if rows.empty:
        batches = sorted(set(builds.df["batch"]))
        raise ValueError(f"batch_size and step must be measured, of {batches}, got {batch_size} and {step!r}")
    return float(rows["speed"].iloc[-1])


def say_builds(builds: Table) -> Said:
    """Say how the last stage of teach.compare_builds does beside the first, for each batch, at an edge and away."""
    first, last = builds.df["stage"].iloc[0], builds.df["stage"].iloc[-1]
    sentences = []
    lost = []
    for step in (AWAY, EDGE):
        ratios = {int(n): build_ratio(builds, int(n), step) for n in dict.fromkeys(builds.df["batch"])}
        told = " and ".join(f"×{ratio:.2f} for {n} sequences" for n, ratio in ratios.items())
        sentences.append(f"**{step.capitalize()}**, speed of {last} against {first}: {told}.")
        lost += [f"{n} sequences {step}" for n, ratio in ratios.items() if ratio < 1 / CLOSE]
    verdict = f"It is slower for {', '.join(lost)}." if lost else "It is slower in none of these rows."
    return say("how fast the tables are built", *sentences, verdict)
