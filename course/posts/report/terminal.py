"""A report for a terminal: the verdicts, the times, what was recorded on GPUs, and what was not run."""

from __future__ import annotations

from collections.abc import Iterator

from roseinfer.display.number_text import verbatim

from .content import DIFFERENT, EQUAL, EXPLAINED, RECORDED, PostReport
from .tables import grid_table, notes, posted_text, times_table


def summary(report: PostReport, width: int | None = None) -> str:
    """Write the report for a terminal. width: of the terminal; wider tables are folded."""
    timed = [section for section in report.sections if section.times]
    tables = ["\n".join((s.title, times_table(s.times).text(width), *notes(s.times))) for s in timed]
    recorded = [grid for section in report.sections if section.title == RECORDED for grid in section.grids]
    tables += [f"{RECORDED}: {grid.title}\n{grid_table(grid).text(width)}" for grid in recorded]
    not_run = [f"not run: {part.what}: needs {part.needs}" for part in report.not_run]
    return "\n\n".join(["\n".join(_verdicts(report)), *tables, "\n".join(not_run)]).rstrip()


def _verdicts(report: PostReport) -> Iterator[str]:
    yield f"{report.title}, on {report.device}"
    yield f"exact facts: {', '.join(f'{report.verdicts[v]} {v}' for v in (EQUAL, EXPLAINED, DIFFERENT))}"
    for fact in report.different:
        yield f"DIFFERENT: {fact.what}: post {posted_text(fact)}, here {verbatim(fact.here)}; {fact.why}"
