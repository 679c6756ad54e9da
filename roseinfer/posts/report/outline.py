"""A report as a list of simple blocks, in reading order. What a report says is decided here, and only here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from roseinfer.bench.provenance import short_commit

from .content import DIFFERENT, EQUAL, EXPLAINED, Exact, Fact, Grid, Picture, Report, Section, Time
from .number_text import exact, share, significant, verbatim

TIMES_CLAUSE = (
    "The post's times are another machine's: they stand beside ours and are never judged. The floor is the best that "
    "this machine could do; of floor is how near the measured value comes to it, and 100% is all there is."
)


@dataclass(frozen=True)
class Heading:
    """level: 1 for the title, 2 for a part."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text; `names` between backticks are code."""

    text: str


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Pairs:
    """Names and what belongs to them, a line each."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Tally:
    """How many facts are equal, explained, different."""

    equal: int
    explained: int
    different: int


@dataclass(frozen=True)
class Column:
    """show: a value (not None) as text. number and share columns are aligned right; a share is a float of 0 to 1."""

    name: str
    kind: Literal["text", "number", "share", "verdict"] = "text"
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Table:
    """values: a row's values in the order of the columns, None where there is none."""

    title: str
    columns: Sequence[Column]
    values: Sequence[Sequence[Any]]

    def rows(self) -> Iterator[list[str]]:
        for row in self.values:
            yield [
                "–" if value is None else column.show(value) for column, value in zip(self.columns, row, strict=True)
            ]


Block = Heading | Paragraph | Code | Pairs | Tally | Table | Picture


def blocks(report: Report, command: str) -> list[Block]:
    """command: what to type to run this again."""
    parts = [_post(report), _here(report, command), _summary(report)]
    parts += [_section(section) for section in report.sections]
    return [block for part in [*parts, _not_run(report)] for block in part] + [Paragraph(TIMES_CLAUSE)]


def title(report: Report) -> str:
    name = report.about.get("title")
    return f"Post {report.post} reproduced" + (f": {name}" if name else "")


def differing(report: Report) -> list[tuple[str, Fact]]:
    """Every fact that is different, with its section's title."""
    return [(s.title, fact) for s in report.sections for fact in s.facts if fact.verdict == DIFFERENT]


def _post(report: Report) -> Iterator[Block]:
    about = report.about
    yield Heading(1, title(report))
    yield Heading(2, "The post")
    known = [("Model", about.get("model")), ("Machine", about.get("hardware")), ("torch", about.get("torch"))]
    known.append(("Command", f"`{about['command']}`" if about.get("command") else None))
    yield Pairs([(name, value or "not stated") for name, value in known])


def _here(report: Report, command: str) -> Iterator[Block]:
    host = report.host
    yield Heading(2, "Here")
    yield Pairs([
        ("Device", report.device),
        ("Host", f"{host['cpu']}; cores: {host['cores']}; torch threads: {host['torch_threads']}; {host['system']}"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)),
        ("Commit", short_commit(report.commit)),
        ("Date", f"{datetime.fromisoformat(report.recorded_at):%Y-%m-%d %H:%M} UTC"),
        ("Arguments", ", ".join(f"`{name}={value}`" for name, value in report.arguments.items())),
        ("Run again", f"`{command}`"),
    ])  # fmt: skip


def _summary(report: Report) -> Iterator[Block]:
    yield Heading(2, "Verdicts")
    yield Tally(*(report.verdicts[verdict] for verdict in (EQUAL, EXPLAINED, DIFFERENT)))
    yield Paragraph(
        "Equal: as in the post. Explained: not as in the post, but just what the named difference (a version, a size) "
        "makes of it. Different: neither."
    )
    if different := differing(report):
        columns = [Column("part"), *_fact_columns([fact for _, fact in different], "why")]
        rows = [(part, fact.what, fact.post, fact.here, fact.why) for part, fact in different]
        yield Table("What is different", columns, rows)


def _section(section: Section) -> Iterator[Block]:
    yield Heading(2, section.title)
    yield from map(Paragraph, section.text)
    if section.code:
        yield Code(section.code)
    if section.facts:
        yield _facts(section.facts)
    if section.times:
        yield times(section.times)
    yield from map(_grid, section.grids)
    yield from section.pictures


def _facts(facts: Sequence[Fact]) -> Table:
    rows = [(fact.what, fact.post, fact.here, fact.verdict) for fact in facts]
    columns = _fact_columns(facts, "verdict")
    if any(fact.why for fact in facts):
        columns.append(Column("why"))
        rows = [(*row, fact.why) for row, fact in zip(rows, facts, strict=True)]
    return Table("Exact facts", columns, rows)


def _fact_columns(facts: Sequence[Fact], last: str) -> list[Column]:
    post, here = (_column(name, [getattr(fact, name) for fact in facts], verbatim) for name in ("post", "here"))
    return [Column("what"), post, here, Column(last, "verdict" if last == "verdict" else "text")]


def times(rows: Sequence[Time], caption: str = "Times") -> Table:
    """The two columns of the floor are left out where no row has one."""
    columns = [
        Column("what"), Column("unit"), Column("post", "number", exact), Column("here", "number", significant),
        Column("here ÷ post", "number", lambda ratio: significant(ratio, 3)),
    ]  # fmt: skip
    values: list[tuple[Any, ...]] = [(t.what, t.unit, t.post, t.here, t.ratio) for t in rows]
    if any(t.floor is not None for t in rows):
        columns += [Column("floor", "number", significant), Column("of floor", "share", share)]
        values = [(*row, t.floor, t.of_floor) for row, t in zip(values, rows, strict=True)]
    return Table(caption, columns, values)


def _grid(grid: Grid) -> Table:
    columns = [_column(name, [row[i] for row in grid.rows], _grid_value) for i, name in enumerate(grid.columns)]
    return Table(grid.title, columns, grid.rows)


def _grid_value(value: Exact) -> str:
    return exact(value) if isinstance(value, float) else verbatim(value)


def _column(name: str, values: Sequence[Exact | None], show: Callable[[Any], str]) -> Column:
    """A column of numbers if all values are."""
    known = [value for value in values if value is not None]
    is_number = known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    return Column(name, "number" if is_number else "text", show)


def _not_run(report: Report) -> Iterator[Block]:
    yield Heading(2, "Not run here, and what it needs")
    rows = [(part.what, part.needs) for part in report.not_run]
    yield Table("", [Column("what"), Column("needs")], rows) if rows else Paragraph("Nothing was left out.")
