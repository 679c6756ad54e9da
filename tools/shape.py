"""python -m tools.shape: what each lesson asks of its reader, from the notebooks: words, cells, the first stub.

The core path is what stands open, without the folded sections (course/pages/folds.py).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import nbformat

from course.pages.folds import FOLD, Placed, placed
from course.pages.headings import heading_of, headings
from roseinfer.display.text_table import Column, TextTable
from roseinfer.paths import ROOT
from tools.solutions import names

DEEPER = "Deeper: "
WORDS_PER_MINUTE, MINUTES_PER_CELL = 150, 1.0  # read with care; run a cell, and look at what it shows


class Shape:
    """One lesson, read from its notebook."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.cells = list(placed(nbformat.read(path, as_version=4).cells))

    @cached_property
    def core(self) -> list[Placed]:
        return [each for each in self.cells if not each.folded]

    @property
    def words(self) -> int:
        """Number of words of prose on the core path."""
        return sum(len(each.cell.source.split()) for each in self.core if not each.is_code)

    @property
    def all_words(self) -> int:
        return sum(len(each.cell.source.split()) for each in self.cells if not each.is_code)

    @property
    def num_code_cells(self) -> int:
        """Number of code cells on the core path, without those of exercises."""
        return sum(each.is_code and not each.is_exercise for each in self.core)

    @property
    def first_stub(self) -> int | None:
        """Number of the code cell that is the first stub, counted from 1 on the core path."""
        code = [each for each in self.core if each.is_code]
        return next((number for number, each in enumerate(code, 1) if each.is_stub), None)

    @property
    def setup_lines(self) -> int:
        """Number of lines of code before the first section."""
        lines = 0
        for each in self.core:
            if not each.is_code and any(level == 2 for level, _ in headings(each.cell.source)):
                break
            if each.is_code:
                lines += sum(bool(line.strip()) for line in each.cell.source.splitlines())
        return lines

    @property
    def minutes(self) -> float:
        """Minutes to read the core path and run its cells, without exercises."""
        return self.words / WORDS_PER_MINUTE + self.num_code_cells * MINUTES_PER_CELL

    @property
    def odd_folds(self) -> list[str]:
        """Folded headings without DEEPER, open ones with it, and those inside a cell: JupyterLab folds whole cells."""
        odd = []
        for each in self.cells:
            for number, (_, text) in enumerate([] if each.is_code else headings(each.cell.source)):
                folds = bool(each.cell.metadata.get(FOLD))
                if text.startswith(DEEPER) != folds or number or heading_of(each.cell.source) is None:
                    odd.append(text)
        return odd

    @property
    def needs_folded(self) -> dict[str, list[str]]:
        """Names that a core cell reads and that only folded cells above it bind, by the cell's first line."""
        core: set[str] = set()
        folded: set[str] = set()
        needs = {}
        for each in self.cells:
            if not each.is_code:
                continue
            read, bound = names(each.cell.source)
            if each.folded:
                folded |= bound
            else:
                if lacking := sorted((read & folded) - core):
                    needs[each.cell.source.partition("\n")[0]] = lacking
                core |= bound
        return needs


def lessons() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def main() -> None:
    columns = ("lesson", "words", "of", "code cells", "first stub", "set-up lines", "minutes")
    rows = [
        (s.name, s.words, s.all_words, s.num_code_cells, s.first_stub or "-", s.setup_lines, round(s.minutes))
        for s in map(Shape, lessons())
    ]
    print(TextTable.of([Column(name) for name in columns], rows).text())


if __name__ == "__main__":
    main()
