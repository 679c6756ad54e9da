"""A report for a terminal: the verdicts, the times, and what was not run."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from .content import DIFFERENT, EQUAL, EXPLAINED, Report
from .number_text import verbatim
from .outline import Table, differing, times, title


def print_summary(report: Report, console: Console) -> None:
    counts = ", ".join(f"{report.verdicts[verdict]} {verdict}" for verdict in (EQUAL, EXPLAINED, DIFFERENT))
    _print(console, f"{title(report)}, on {report.device}\nexact facts: {counts}")
    for part, fact in differing(report):
        post, here = verbatim(fact.post), verbatim(fact.here)
        _print(console, f"DIFFERENT: {part}: {fact.what}: post {post}, here {here}; {fact.why}")
    for section in report.sections:
        if section.times:
            console.print(rich_table(times(section.times, section.title)))
    for part in report.not_run:
        _print(console, f"not run: {part.what}: needs {part.needs}")


def rich_table(table: Table) -> RichTable:
    shown = RichTable(title=escape(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        shown.add_column(escape(column.name), justify="right" if column.kind in ("number", "share") else "left")
    for row in table.rows():
        shown.add_row(*map(escape, row))
    return shown


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
