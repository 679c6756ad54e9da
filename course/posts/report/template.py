"""Fills text with what was measured: a post's report.md, section by section, and report.md here around it.

In a template `{{ value }}` is a value's text, so that Markdown shows it as it is. A section's template also has
`{{ facts }}` and `{{ times }}`, which are their tables and notes; `{{ table(rows, "column", ...) }}` or
`{{ table(grid) }}`, under a bold line that names it; `{{ lines | fenced }}`; and
`{{ about | fact("torch") }}`, a fact of the post with its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from roseinfer.bench.provenance import short_commit
from roseinfer.display.number_text import exact, verbatim
from roseinfer.display.text_table import TextTable, markdown_text

from ..data import fact_text, source_of
from .content import DIFFERENT, RECORDED, Grid, NotRun, PostReport, Section
from .tables import facts_table, grid_table, notes, times_table

POSTS = Path(__file__).parents[1]
EXACT_FACTS, TIMES = "Exact facts", "Times"
TABLE_TITLE = re.compile(r"^\*\*(.+)\*\*\n\n\| ", re.MULTILINE)
Values = Mapping[str, Any]


class Markdown(str):
    """Text that is Markdown already and not escaped again: jinja2 knows it by its __html__, and a macro's has one."""

    def __html__(self) -> str:
        return self


def _text(value: Any) -> str:
    if hasattr(value, "__html__"):
        return value
    return Markdown(markdown_text(exact(value) if isinstance(value, float) else verbatim(value)))


def _fenced(text: str) -> Markdown:
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}\n{text.rstrip()}\n{fence}")


def _code(value: Any) -> Markdown:
    return Markdown(f"`{value}`")


ENVIRONMENT = Environment(
    loader=FileSystemLoader(POSTS),
    undefined=StrictUndefined,
    autoescape=True,
    finalize=_text,
    trim_blocks=True,
    keep_trailing_newline=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"fenced": _fenced, "code": _code, "fact": fact_text}


PLAIN = ENVIRONMENT.overlay(autoescape=False, finalize=verbatim)


def templates(post: str) -> list[str]:
    """Read the sections of the post's report.md, each from its heading on, with the text before the first heading.

    The last one is for `left_out`.
    """
    shared, *sections = re.split("(?m)^(?=## )", (POSTS / f"post{post}" / "report.md").read_text(encoding="utf-8"))
    return [shared + section for section in sections]


def written(template: str, values: Values) -> Section:
    """Write a section of a report. values: what its template names, with facts, times and samples if there are any."""
    facts, times = values.get("facts", ()), values.get("times", ())
    grids: list[Grid] = []

    def table(rows: Grid | Sequence[Sequence[Any]], *columns: str) -> Markdown:
        grids.append(rows if isinstance(rows, Grid) else Grid(columns, list(rows)))
        return _table(grid_table(grids[-1]))

    tables = {
        "facts": _noted(EXACT_FACTS, facts_table(facts), notes(facts)),
        "times": _noted(TIMES, times_table(times), notes(times)),
    }
    text = ENVIRONMENT.from_string(template).render({**values, **tables, "table": table})
    text = re.sub("\n{3,}", "\n\n", text).strip()
    title = text.splitlines()[0].removeprefix("## ")
    titles = [title for title in TABLE_TITLE.findall(text) if title not in (EXACT_FACTS, TIMES)]
    named = [replace(grid, title=title) for grid, title in zip(grids, titles, strict=True)]
    return Section(title, text, facts, times, named, values.get("samples", {}))


def left_out(template: str, values: Values) -> list[NotRun]:
    """List the parts of a post that were not run. A part is a line of the template: `what | what it needs`."""
    lines = PLAIN.from_string(template).render(values).splitlines()
    return [NotRun(*line.split(" | ")) for line in lines if " | " in line]


def recorded_section(grids: Mapping[str, Grid]) -> Section:
    """Write the section of what was recorded elsewhere. grids: each table by its title."""
    template = (POSTS / "report" / "recorded.md").read_text(encoding="utf-8")
    return written(template, {"title": RECORDED, "recorded": grids})


def _noted(title: str, table: TextTable, notes: Sequence[str]) -> Markdown:
    """Write a table with its title and notes."""
    return Markdown("\n\n".join([f"**{title}**", _table(table), *map(markdown_text, notes)]))


def _table(table: TextTable) -> Markdown:
    return Markdown(table.markdown(bold=DIFFERENT))


def to_markdown(report: PostReport, command: str) -> str:
    """Write the report as Markdown. command: what to type to run this again."""
    sections = "\n\n".join(section.markdown for section in report.sections)
    return ENVIRONMENT.get_template("report/report.md").render(
        report=report,
        about={name: _known(report.about, name) for name in ("model", "hardware", "torch")},
        commit=short_commit(report.commit),
        date=f"{datetime.fromisoformat(report.recorded_at):%Y-%m-%d %H:%M}",
        different=_noted("What is different", facts_table(report.different), notes(report.different)),
        not_run=_table(TextTable.of(["what", "needs"], [(part.what, part.needs) for part in report.not_run])),
        sections=Markdown(sections),
        command=command,
    )


def _known(about: Mapping[str, Any], name: str) -> str:
    """Write a fact, and where it comes from if the post does not state it."""
    source = source_of(about, name) if about.get(name) else None
    return fact_text(about, name) if source is None or source.is_stated else f"{about[name]} ({source})"
