"""Folded sections of a notebook: what a collapsed heading hides, up to the next heading of its level or above.

`make nightly` runs them and compares their outputs; no other cell needs them, so `make test` leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .headings import heading_of

FOLD = "jp-MarkdownHeadingCollapsed"
EXERCISE = ("teach.exercise(", "teach.check(")


@dataclass(frozen=True)
class Placed:
    """A cell and its place. folded: whether a collapsed heading above hides it."""

    cell: Any
    folded: bool

    @property
    def is_code(self) -> bool:
        return bool(self.cell.cell_type == "code")

    @property
    def is_stub(self) -> bool:
        return "exercise" in self.cell.metadata

    @property
    def is_exercise(self) -> bool:
        return self.is_code and (self.is_stub or self.cell.source.startswith(EXERCISE))


def placed(cells: Sequence[Any]) -> Iterator[Placed]:
    """Yield the cells in their order, each with whether it is folded."""
    fold: int | None = None  # level of the collapsed heading that is in force
    for cell in cells:
        heading = heading_of(cell.source) if cell.cell_type == "markdown" else None
        if heading and fold is not None and heading[0] <= fold:
            fold = None
        yield Placed(cell, fold is not None)
        if heading and fold is None and cell.metadata.get(FOLD):
            fold = heading[0]
