"""The book's sources, laid out like the repository, so that links between them hold."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat

from course.display.board import VEGA
from course.teach.exercises.solutions import parse_solutions
from roseinfer.paths import ROOT
from tools.book.launch import check_repository
from tools.book.lesson_page import chart_html, is_chart, to_page
from tools.book.links import rewrite_links
from tools.shape import lessons

CHART = re.compile(r"<!-- chart: (?P<notebook>\S+) (?P<call>\S+) -->")
OWN = ROOT / "docs" / "book"


def texts() -> list[Path]:
    """List the book's own pages. In the book they lie at its root, and all others where they lie in the repository."""
    return [ROOT / "teaching" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def write_source(folder: Path, repository: str | None) -> None:
    """Write all that Sphinx reads. repository: see build.

    Raises ValueError for a notebook that has not been recorded.
    """
    if repository is not None:
        check_repository(repository)
    shutil.rmtree(folder, ignore_errors=True)
    pages = {str(path.relative_to(ROOT)) for path in (*lessons(), *texts())}
    for path in lessons():
        nb = nbformat.read(path, as_version=4)
        answers = parse_solutions((ROOT / "notebooks" / "solutions" / f"{path.stem}.py").read_text(encoding="utf-8"))
        relative = str(path.relative_to(ROOT))
        _write(folder / relative, nbformat.writes(to_page(nb, answers, relative, pages, repository)))
    for path in texts():
        relative = str(path.relative_to(ROOT))
        _write(folder / relative, rewrite_links(path.read_text(encoding="utf-8"), relative, pages))
    for path in sorted(OWN.glob("*.md")):
        _write(folder / path.name, CHART.sub(_chart, path.read_text(encoding="utf-8").replace("](../../", "](")))
    for picture in (*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")):
        shutil.copy(picture, folder / "docs")


def _chart(match: re.Match[str]) -> str:
    """Return the recorded chart of a notebook's first cell that has that call; a Board plays as the page opens."""
    nb = nbformat.read(ROOT / match["notebook"], as_version=4)
    cell = next(cell for cell in nb.cells if cell.cell_type == "code" and match["call"] in cell.source)
    charts = [output.data for output in cell.outputs if is_chart(output.get("data", {}))]
    for signal in (signal for data in charts for signal in data.get(VEGA, {}).get("signals", [])):
        if signal["name"] == "play":
            signal["value"] = True
    return "\n".join(map(chart_html, charts))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
