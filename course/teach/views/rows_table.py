"""table: rows that a cell has collected, as a Table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roseinfer.display.table import Table


def table(
    rows: Sequence[Mapping[str, Any]],
    live: Sequence[str] = (),
    title: str = "",
    note: str = "",
    formats: Mapping[str, str] | None = None,
    warning: str = "",
) -> Table:
    """Show rows, which must all have the same keys, as a Table.

    live: columns that differ from run to run, such as times: shown, not compared. formats: of columns, such as
    "{:.1f}". warning: why the live columns should not be believed.
    Raises ValueError for no rows, rows with other keys, and a live column that is not there.
    """
    import pandas as pd

    if not rows:
        raise ValueError("rows must be at least one, got none")
    names = list(rows[0])
    if odd := [row for row in rows if list(row) != names]:
        raise ValueError(f"rows must all have the keys {', '.join(names)}, got {', '.join(odd[0])}")
    if unknown := [name for name in live if name not in names]:
        raise ValueError(f"live must name columns, of {', '.join(names)}, got {unknown[0]!r}")
    return Table(
        pd.DataFrame(rows),
        exact=[name for name in names if name not in live],
        live=list(live),
        title=title,
        note=note,
        formats=dict(formats or {}),
        warning=warning,
    )
