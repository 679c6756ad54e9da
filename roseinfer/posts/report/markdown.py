"""A report as GitHub Markdown. What a report says, and in which order, is decided here; the page is made of this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from roseinfer.bench.provenance import short_commit
from roseinfer.display.cells import Cells, markdown_text

from ..data import fact_text, source_of
from .content import DIFFERENT, EQUAL, EXPLAINED, PostReport, Section
from .tables import different_table, facts_table, grid_table, not_run_table, notes, times_table

BLOCK_START = re.compile(r"^(\s*(?=[#>+-])|\s*\d+(?=[.)]))")  # of a heading, a quotation, a list
PICTURE = "Picture, in the HTML page: "  # GitHub shows none that lies inside the text
VERDICTS_CLAUSE = (
    "Equal: as in the post. Explained: not as in the post, but just what the named difference (a version, a size) "
    "makes of it. Different: neither."
)
POST_CLAUSE = (
    "Under post stands what the post states. Other values have a mark, and below the table is what they were computed "
    "or inferred from, or where the post's public repository shows them."
)
TIMES_CLAUSE = (
    "The post's times are another machine's: they stand beside ours and are never judged. The floor is the best that "
    "this machine could do; of floor is how near the measured value comes to it, and 100% is all there is."
)


def to_markdown(report: PostReport, command: str) -> str:
    """command: what to type to run this again."""
    parts = [_post(report), _here(report, command), _verdicts(report), *map(_section, report.sections)]
    blocks = [block for part in [*parts, _not_run(report)] for block in part]
    return "\n\n".join([*blocks, paragraph(TIMES_CLAUSE)]) + "\n"


def _post(report: PostReport) -> Iterator[str]:
    about = report.about
    yield f"# {markdown_text(report.title)}"
    yield heading("The post")
    names = {"Model": "model", "Machine": "hardware", "torch": "torch"}
    known = [(title, _known(about, name)) for title, name in names.items()]
    known.append(("Command", f"`{about['command']}`" if about.get("command") else "not stated"))
    yield pairs(known)


def _known(about: Mapping[str, Any], name: str) -> str:
    """A fact, and what it comes from if the post does not state it."""
    source = source_of(about, name) if about.get(name) else None
    return fact_text(about, name) if source is None or source.is_stated else f"{about[name]} ({source})"


def _here(report: PostReport, command: str) -> Iterator[str]:
    host = report.host
    yield heading("Here")
    yield pairs([
        ("Device", report.device),
        ("Host", f"{host['cpu']}; cores: {host['cores']}; torch threads: {host['torch_threads']}; {host['system']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)),
        ("Commit", short_commit(report.commit)),
        ("Date", f"{datetime.fromisoformat(report.recorded_at):%Y-%m-%d %H:%M} UTC"),
        ("Arguments", ", ".join(f"`{name}={value}`" for name, value in report.arguments.items())),
        ("Run again", f"`{command}`"),
    ])  # fmt: skip


def _verdicts(report: PostReport) -> Iterator[str]:
    yield heading("Verdicts")
    yield f"**{', '.join(f'{report.verdicts[verdict]} {verdict}' for verdict in (EQUAL, EXPLAINED, DIFFERENT))}.**"
    yield paragraph(VERDICTS_CLAUSE)
    yield paragraph(POST_CLAUSE)
    if report.different:
        yield from titled("What is different", different_table(report.different))


def _section(section: Section) -> Iterator[str]:
    yield heading(section.title)
    yield from map(paragraph, section.text)
    if section.code:
        yield fenced(section.code)
    if section.facts:
        yield from titled("Exact facts", facts_table(section.facts))
        yield from map(paragraph, notes(section.facts))
    if section.times:
        yield from titled("Times", times_table(section.times))
        yield from map(paragraph, notes(section.times))
    for grid in section.grids:
        yield from titled(grid.title, grid_table(grid))
    for image in section.images:
        yield f"*{PICTURE}{markdown_text(image.alt)}*"


def _not_run(report: PostReport) -> Iterator[str]:
    yield heading("Not run here, and what it needs")
    yield not_run_table(report.not_run).markdown() if report.not_run else "Nothing was left out."


def heading(text: str) -> str:
    return f"## {markdown_text(text)}"


def paragraph(text: str) -> str:
    """Plain text; `names` between backticks are code."""
    return BLOCK_START.sub(r"\1\\", markdown_text(text))


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what belongs to them, a line each."""
    return "\n".join(f"- {markdown_text(name)}: {markdown_text(value)}" for name, value in rows)


def fenced(text: str) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def titled(title: str, table: Cells) -> Sequence[str]:
    return f"**{markdown_text(title)}**", table.markdown(bold=DIFFERENT)
