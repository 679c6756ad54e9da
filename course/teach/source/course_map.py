"""The map of the course: what each stage changes, read from the stage modules themselves."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from roseinfer.display.table import Table
from roseinfer.stage import Stage

from ..views.rows_table import table


def course_map(stages: Sequence[type[Stage]]) -> Table:
    """Make a row per stage: its class and its module's first line. The gain is left to each lesson's predictions."""
    rows = []
    for stage in stages:
        doc = sys.modules[stage.__module__].__doc__ or ""
        headline = doc.strip().splitlines()[0].partition(": ")[2].rstrip(".")
        rows.append({"stage": stage.name, "class": stage.__name__, "the change": headline})
    return table(rows, title="The ladder so far")
