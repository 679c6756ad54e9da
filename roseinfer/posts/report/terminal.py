"""A report for a terminal: the verdicts, the times, and what was not run."""

from __future__ import annotations

from collections.abc import Iterator

from roseinfer.display.number_text import verbatim

from .content import DIFFERENT, EQUAL, EXPLAINED, PostReport
from .tables import times_table


def summary(report: PostReport, width: int | None = None) -> str:
    """width: of the terminal; wider tables are folded."""
    timed = [section for section in report.sections if section.times]
    tables = [f"{section.title}\n{times_table(section.times).text(width)}" for section in timed]
    not_run = [f"not run: {part.what}: needs {part.needs}" for part in report.not_run]
    return "\n\n".join(["\n".join(_verdicts(report)), *tables, "\n".join(not_run)]).rstrip()


def _verdicts(report: PostReport) -> Iterator[str]:
    yield f"{report.title}, on {report.device}"
    yield f"exact facts: {', '.join(f'{report.verdicts[v]} {v}' for v in (EQUAL, EXPLAINED, DIFFERENT))}"
    for part, fact in report.different:
        post, here = verbatim(fact.post), verbatim(fact.here)
        yield f"DIFFERENT: {part}: {fact.what}: post {post}, here {here}; {fact.why}"
