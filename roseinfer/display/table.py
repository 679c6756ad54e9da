"""Table: a DataFrame shown twice, once as exact text and once as a live view.

text/plain holds only exact facts, so that a recorded notebook output can be compared with a new run on another
machine. text/html holds everything, times included.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from typing import Any

from roseinfer.profiling.facts import Facts, HasFacts

from .number_text import rounded
from .text_table import Column, TextTable

# Semi-transparent, so that it reads on JupyterLab's light and dark themes alike; text keeps the theme's own colour.
BAR_COLOUR = "rgba(86, 180, 233, 0.4)"
MUTED = "opacity: 0.7; font-size: 0.9em"


class Table(Facts):
    """A table of facts: text/plain has the columns `exact`, text/html those and `live`, in df's order.

    text/plain has the title and the rows of exact_rows; text/html also the warning, the note, the bars and the folded
    query.
    """

    @classmethod
    def of(cls, result: HasFacts) -> Table:
        """Make the table of one of roseinfer.profiling's results, such as Trace.spans() or a Floor."""
        facts = result.facts()
        return facts if isinstance(facts, cls) else cls(**vars(facts))

    def __repr__(self) -> str:
        table = self.text_table(self.exact, self.exact_rows).text() if self.exact else ""
        return "\n".join(filter(None, (self.title, table)))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.to_html()}

    def text_table(self, columns: Sequence[str], keep: Sequence[bool] | None = None) -> TextTable:
        """Return these columns as text, of all rows or of those that `keep` marks."""
        df = self.df if keep is None else self.df.loc[keep]
        shown = [
            Column(name, partial(format_cell, template=self.formats.get(name)), df[name].dtype.kind in "iuf")
            for name in columns
        ]
        return TextTable.of(shown, zip(*(df[name].tolist() for name in columns), strict=True))

    def to_html(self) -> str:
        """Return the live view: every column of exact and live, some of them folded, the note and the query."""
        shown = [name for name in self.df.columns if name in self.exact or name in self.live]
        first = shown[:1]
        more = [name for name in shown if name in self.folded]
        heading = f"<div><strong>{html.escape(self.title)}</strong></div>" if self.title else ""
        note = f'<div style="{MUTED}">{html.escape(self.note)}</div>' if self.note else ""
        warning = f"<div><strong>{html.escape(self.warning)}</strong></div>" if self.warning else ""
        table = self._html_table([name for name in shown if name not in more])
        if more:
            explained = f'<div style="{MUTED}">{html.escape(self.explanation)}</div>' if self.explanation else ""
            table += _fold(f"more columns: {', '.join(more)}", self._html_table([*first, *more]) + explained)
        query = _fold("SQL", f"<pre>{html.escape(self.query.strip())}</pre>") if self.query else ""
        return f"{heading}{warning}{note}{table}{query}"

    def _html_table(self, columns: Sequence[str]) -> str:
        table = self.text_table(columns)

        def bar(row: int, column: int) -> str:
            if columns[column] not in self.bars or not table.rows[row][column]:
                return ""
            width = 100 * min(max(float(self.df[columns[column]].iloc[row]), 0.0), 1.0)
            stops = f"{BAR_COLOUR} {width:.1f}%, transparent {width:.1f}%"
            return f"; background: linear-gradient(90deg, {stops})"

        return table.html(self.title, bar)


def _fold(summary: str, content: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def format_cell(value: Any, template: str | None = None) -> str:
    """Format a value: nothing for a missing one, three decimals for a float without a template."""
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    return rounded(value) if template is None else template.format(value)
