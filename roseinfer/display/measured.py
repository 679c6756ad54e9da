"""Result: a measurement as text for a terminal, as JSON with every sample, and as a short line of JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from .text_table import Column, TextTable

DIGITS = 5  # of a number on the short line
NOTE_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class Result:
    """arguments: what was asked. rows: a dict each. The short line has the fields SHORT_FIELDS, and SHORT of a row.

    COLUMNS: of the table for a terminal, unless `tables` makes others. MISSING: stands for None in it.
    """

    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    MISSING: ClassVar[str] = ""
    SHORT: ClassVar[tuple[str, ...]] = ()
    SHORT_FIELDS: ClassVar[tuple[str, ...]] = ("arguments",)

    arguments: dict[str, Any]
    rows: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, rows and samples last, so that a file begins with where it comes from."""
        values = asdict(self)
        last = {name: values.pop(name) for name in ("rows", "samples") if name in values}
        return values | last

    def to_json(self) -> str:
        """Return everything as JSON on one line."""
        return on_one_line(self.to_dict())

    def to_line(self) -> str:
        """Write one line of JSON: what was asked, where it ran, medians and spread of each row, no samples."""
        return on_one_line(rounded(self.short()))

    def short(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.SHORT_FIELDS}
        return fields | {"rows": [self.short_row(row) for row in self.rows]}

    def short_row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in self.SHORT}

    def text(self, width: int | None = None, long: bool = False) -> str:
        """Return the tables, then the notes. long: all that a result has, where there is more."""
        size = min(width or NOTE_WIDTH, NOTE_WIDTH)
        notes = "\n".join(textwrap.fill(note, size) for note in self.notes())
        return "\n\n".join([*self.tables(width, long), *([notes] if notes else [])])

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        """Return the tables for a terminal."""
        return [TextTable.of_rows(self.COLUMNS, self.rows, self.MISSING).text(width)]

    def notes(self) -> list[str]:
        return []


@dataclass(frozen=True, kw_only=True)
class MachineResult(Result):
    """A result of one machine. host, device, versions, commit: see bench.provenance.describe_host. samples: raw."""

    SHORT_FIELDS: ClassVar[tuple[str, ...]] = ("arguments", "device", "commit")

    host: dict[str, Any]
    device: str
    versions: dict[str, Any]
    commit: str | None
    samples: list[Any] = field(default_factory=list)


def on_one_line(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def rounded(values: Any) -> Any:
    """Round the numbers of a value to DIGITS digits."""
    if isinstance(values, dict):
        return {name: rounded(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [rounded(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if isinstance(values, float) else values
