"""Table: a DataFrame shown twice, once as a contract and once as a live view.

text/plain holds only exact facts, so that a recorded notebook output can be compared with a new run on another
machine. text/html holds everything, times included.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from numbers import Integral, Number
from typing import Any

from roseinfer.profiling.facts import Facts, HasFacts

# Semi-transparent, so that it reads on JupyterLab's light and dark themes alike; text keeps the theme's own colour.
BAR_COLOUR = "rgba(86, 180, 233, 0.4)"
MUTED = "opacity: 0.7; font-size: 0.9em"


class Table(Facts):
    """Facts, shown: text/plain has the columns `exact`, text/html those and `live`, in df's order.

    text/plain has the title and the rows of exact_rows; text/html the note, the bars and the folded query, too.
    """

    @classmethod
    def of(cls, result: HasFacts) -> Table:
        """The table of a result of roseinfer.profiling's, such as Trace.spans() or a Floor."""
        facts = result.facts()
        return facts if isinstance(facts, cls) else cls(**vars(facts))

    def __repr__(self) -> str:
        rows = self._rows(self.exact)
        cells = [[text for _, text in row] for row, keep in zip(rows, self.exact_rows, strict=True) if keep]
        widths = [max(map(len, column)) for column in zip(self.exact, *cells, strict=True)]
        right = [self._is_number(name) for name in self.exact]

        def line(texts: Sequence[str]) -> str:
            padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True))
            return "  ".join(padded).rstrip()

        lines = [self.title] if self.title else []
        lines += [line(self.exact), "  ".join("-" * width for width in widths)]
        lines += [line(row) for row in cells] or ["(no rows)"]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.to_html()}

    def to_html(self) -> str:
        """The live view: every column of exact and live, the note and the folded query."""
        columns = [name for name in self.df.columns if name in self.exact or name in self.live]
        heading = f"<div><strong>{html.escape(self.title)}</strong></div>" if self.title else ""
        if self.note:
            heading += f'<div style="{MUTED}">{html.escape(self.note)}</div>'
        head = "".join(f'<th scope="col" style="{self._align(name)}">{html.escape(name)}</th>' for name in columns)
        body = "".join(f"<tr>{self._html_row(columns, row)}</tr>" for row in self._rows(columns))
        query = (
            f"<details><summary>SQL</summary><pre>{html.escape(self.query.strip())}</pre></details>"
            if self.query
            else ""
        )
        return (
            # not a <caption>, which would be wrapped to the width of a narrow table
            f'{heading}<table aria-label="{html.escape(self.title)}">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{query}"
        )

    def _html_row(self, columns: Sequence[str], row: Sequence[tuple[Any, str]]) -> str:
        cells = []
        for name, (value, text) in zip(columns, row, strict=True):
            style = self._align(name)
            if name in self.bars and text:
                width = 100 * min(max(float(value), 0.0), 1.0)
                stops = f"{BAR_COLOUR} {width:.1f}%, transparent {width:.1f}%"
                style += f"; background: linear-gradient(90deg, {stops})"
            cells.append(f'<td style="{style}">{html.escape(text)}</td>')
        return "".join(cells)

    def _rows(self, columns: Sequence[str]) -> list[list[tuple[Any, str]]]:
        """(value, formatted text) of each cell, row by row."""
        values = [self.df[name].tolist() for name in columns]
        return [
            [(value, format_cell(value, self.formats.get(name))) for name, value in zip(columns, row, strict=True)]
            for row in zip(*values, strict=True)
        ]

    def _is_number(self, name: str) -> bool:
        return self.df[name].dtype.kind in "iuf"

    def _align(self, name: str) -> str:
        if self._is_number(name):
            return "text-align: right; font-variant-numeric: tabular-nums"
        return "text-align: left"


def format_cell(value: Any, template: str | None = None) -> str:
    """A missing value is empty; a float without a template gets three decimals."""
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ""
    if template is not None:
        return template.format(value)
    if isinstance(value, Number) and not isinstance(value, (Integral, bool)):
        return f"{value:,.3f}"
    return str(value)
