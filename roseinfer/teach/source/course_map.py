"""The map of the course: what each stage changes, read from the stage modules themselves."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence as List

from roseinfer.display.table import Table
from roseinfer.stage import Stage


def course_map(stages: List[type[Stage]]) -> Table:
    """One row per stage: its class and its module's first line; in html also what it gives and where it loses."""
    import pandas as pd

    rows = []
    for stage in stages:
        doc = sys.modules[stage.__module__].__doc__ or ""
        headline = doc.strip().splitlines()[0].partition(": ")[2].rstrip(".")
        rows.append({"stage": stage.name, "class": stage.__name__, "the change": headline})
        rows[-1] |= {"what it gives": _section(doc, "What it gives"), "where it loses": _section(doc, "Where it loses")}
    return Table(
        pd.DataFrame(rows),
        exact=["stage", "class", "the change"],
        live=["what it gives", "where it loses"],
        title="The ladder so far",
    )


def _section(doc: str, name: str) -> str:
    """The text behind `name:` up to the next heading or empty line, on one line."""
    match = re.search(rf"^{name}:(.*?)(?=^\S|^\s*$|\Z)", doc, flags=re.MULTILINE | re.DOTALL)
    return " ".join(match.group(1).split()) if match else ""
